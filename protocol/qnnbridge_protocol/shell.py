"""Quote arguments and build command lines for suggested commands, so that a pasted command runs as printed. Pure
functions.

Some arguments come from untrusted sources: names in a model or a repository. On Windows the reader may paste into
the Command Prompt or into PowerShell. Both shells use an argument in double quotes unchanged, with two exceptions:
the Command Prompt expands ``%NAME%``, which cannot be prevented, and PowerShell expands ``$``, which is escaped for
PowerShell. An argument with ``$`` then has a different value in the Command Prompt, but cannot start a command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from qnnbridge_protocol.records import NamedTuple


def shell_word(text: str | os.PathLike[str]) -> str:
    """Return an argument for a command line, quoted for the shells of this system if needed."""
    word = os.fspath(text)
    if os.name != "nt":
        import shlex

        return shlex.quote(word)
    import re

    if _is_plain(word):
        return word
    # PowerShell treats typographic double quotes like ordinary double quotes.
    return '"' + re.sub("[$`\u201c-\u201e]", r"`\g<0>", _for_program(word)) + '"'


def model_command(command: str, model: str | os.PathLike[str] | None, *options: str) -> str:
    """Return a command line that runs a qnnbridge command on a model, for pasting into a shell.

    Args:
        command: name of the command, such as "verify".
        model: path of the file; None or "" for a model that was given as bytes.
        options: options that are already quoted; empty options are omitted.
    """
    file = shell_word(model) if model else "MODEL"
    line = " ".join(["qnnbridge", command, file, *filter(None, options)])
    return line if model else f"{line} (MODEL: the model in a file)"


def beside_command(model: str | os.PathLike[str] | None) -> str:
    """Return a command line that removes the folders from a model's references to its external weight files."""
    # The code contains no quotes, because shells treat quotes in different ways. `basename` changes only the path,
    # not the other entries (offset, length and checksum).
    code = (
        "import onnx, os, sys; m = onnx.load(sys.argv[1], load_external_data=False); "
        "[e.MergeFrom(type(e)(value=os.path.basename(e.value))) "
        "for t in m.graph.initializer for e in t.external_data]; "
        "onnx.save(m, sys.argv[1])"
    )
    return f"python -c {shell_word(code)} {shell_word(model) if model else 'MODEL'}"


def fix_command(model: str | os.PathLike[str] | None, *options: str) -> str:
    """Return the command line of `qnnbridge fix` for a model, like `model_command`. The command writes
    the file `fixed_file(model)`."""
    return model_command("fix", model, f"-o {fixed_file(model)}", *options)


def fixed_file(model: str | os.PathLike[str] | None) -> str:
    """Return the output file of a suggested `qnnbridge fix`, in the current folder, quoted as an argument."""
    stem = os.path.splitext(os.path.basename(os.fspath(model)))[0] if model else "model"
    return shell_word(f"{stem}_fixed.onnx")


class ModelInCommands(NamedTuple):
    """The model of a session, for suggested commands.

    path: its file; ``None`` for a model given as bytes. sizes: sizes of free dimensions, by name. soc_model: the
    chip, if the session sets it.
    """

    path: str | None = None
    sizes: Mapping[str, int] = {}
    soc_model: str | None = None

    def examine(self, command: str) -> str:
        """Return the command line of "verify" or "analyze" for the session."""
        chip = f"--soc-model {shell_word(self.soc_model)}" if self.soc_model is not None else ""
        return model_command(command, self.path, self._sizes, chip)

    def fix(self, *rewrites: str, constants: str = "") -> str:
        """Return the command line of "fix". rewrites: names of rewrites; none for all. constants: an option that
        is already quoted."""
        # `fix` does not accept sizes if the rewrite that sets sizes is excluded.
        only = ("fixed-shapes", *rewrites) if rewrites and self.sizes else rewrites
        return fix_command(self.path, self._sizes, *(f"--only {name}" for name in only), constants)

    @property
    def _sizes(self) -> str:
        return " ".join(f"--dim {shell_word(f'{name}={size}')}" for name, size in self.sizes.items())


NO_FILE: Final = ModelInCommands()


def command_line(words: Sequence[str | os.PathLike[str]]) -> str:
    """Return a command line for this system's shells. The first word is the path of the program.

    On Windows a path that needs quotes is quoted for PowerShell, which runs it only after ``&``.
    """
    texts = [os.fspath(word) for word in words]
    if os.name == "nt":
        return powershell_line(texts) if not _is_plain(texts[0]) else " ".join(map(shell_word, texts))
    import shlex

    return shlex.join(texts)


def command_prompt_line(words: Sequence[str]) -> str:
    """Return a command line for the Command Prompt of Windows."""
    import re

    plain = re.compile(r"[\w.:=/\\+,@\[\]-]+")
    return " ".join(word if plain.fullmatch(word) else f'"{_for_program(word)}"' for word in words)


def powershell_line(words: Sequence[str]) -> str:
    """Return a command line for PowerShell, which runs a quoted program only after ``&``."""
    import re

    # In PowerShell a typographic quote also ends a string; two consecutive quotes stand for one quote.
    doubled = [re.sub("['\u2018-\u201b]", r"\g<0>\g<0>", word) for word in words]
    quoted = [word if _is_plain(word) else f"'{text}'" for word, text in zip(words, doubled, strict=True)]
    return " ".join(["&", *quoted] if quoted[0].startswith("'") else quoted)


def _is_plain(word: str) -> bool:
    """Return whether no shell of Windows gives any character of the argument a special meaning."""
    import re

    # `~` means the home folder only at the beginning. Short path names of Windows contain it in the middle.
    return re.fullmatch(r"(?!~)[\w.:=/\\+~-]+", word) is not None


def _for_program(word: str) -> str:
    """Return the argument escaped for double quotes, as Windows programs parse it.

    Quotes, backslashes before a quote and backslashes at the end are doubled.
    """
    import re

    return re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + found[2] * 2, word)
