"""Join ES modules into one script, for a page that opens from disk and has no server.

A module is a file whose imports stand at the start of a line, as `import { a, b } from "./x.js";`
or `import "./x.js";`, and whose exports are `export` before a const, a class or a function. A
browser and Node run these files as they are.
"""

import re
from pathlib import Path

IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"(\.[^"]*)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async function|function\*?|class|const) ([\w$]+))", re.MULTILINE)
OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundle(door: Path) -> str:
    """Return the script of a module and of all that it imports, each in a scope of its own.

    Raises:
        ImportError: if an import names a missing file or export, or closes a circle;
            or if it has another form than those above.
    """
    scopes: dict[Path, tuple[str, list[str]]] = {}  # the variable of a module, and its exports
    parts: list[str] = []

    def add(path: Path, importers: tuple[Path, ...]) -> None:
        if path in importers:
            circle = " imports ".join(each.name for each in (*importers, path))
            raise ImportError(f"circular import: {circle}")
        if path in scopes:
            return
        if not path.is_file():
            raise ImportError(f"{importers[-1].name} imports {path}, which does not exist")
        text, opened = path.read_text(encoding="utf-8"), []
        for found, source in IMPORT.findall(text):
            target = (path.parent / source).resolve()
            add(target, (*importers, path))
            scope, exports = scopes[target]
            names = re.findall(r"[\w$]+", found)
            for name in names:
                if name not in exports:
                    raise ImportError(f"{path.name} imports {name}: not an export of {target.name}")
            if names:
                opened.append(f"const {{ {', '.join(names)} }} = {scope};\n")
        body, exports = IMPORT.sub("", text), [name for _, name in EXPORT.findall(text)]
        body = EXPORT.sub(r"\1", body)
        if other := OTHER.search(body):
            raise ImportError(f"{path.name}: {other[0]!r} is not a form of import or export")
        scopes[path] = (f"module{len(scopes)}", exports)
        parts.append(
            f"// {path.name}\nconst {scopes[path][0]} = (() => {{\n{''.join(opened)}{body}"
            f"return {{ {', '.join(exports)} }};\n}})();\n// The end of {path.name}\n"
        )

    add(door.resolve(), ())
    return "".join(parts)
