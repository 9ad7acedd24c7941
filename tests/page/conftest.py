"""A browser tab for the tests of the page."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def window(browser: Any) -> tuple[Any, list[str]]:
    """Return one offline tab for all tests, and the list of what its page logs and requests."""
    events = []

    def dismiss(dialog: Any) -> None:
        events.append(dialog.message)
        dialog.dismiss()

    tab = browser.new_context(offline=True).new_page()
    tab.on("console", lambda message: events.append(message.text))
    tab.on("pageerror", lambda error: events.append(str(error.stack)))
    tab.on("dialog", dismiss)
    tab.on("request", lambda request: events.append(request.url))
    return tab, events
