r"""An answer's LaTeX in one notation, and what it is made of; text in, text out, each scan in linear time.

    \dfrac12 \text{ cm}  ──plain──▶  \frac{1}{2}\text{ cm}  ──without_unit──▶  \frac{1}{2}, "cm"
    x=1 \text{ or } x=2  ──plain──▶  x=1, x=2               ──parts──▶         ["x=1", "x=2"]
    \left(0,\,1\right]   ──plain──▶  (0, 1]                 ──bracketed──▶     "(", ["0", "1"], "]"

Each rule stands with its reason. What a rule can't be sure of it leaves alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_CHARACTERS = str.maketrans(
    {
        "\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "×": r"\times ", "÷": "/",
        "·": r"\cdot ", "⋅": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
        "±": r"\pm ", "∅": r"\emptyset ", "°": r"^{\circ}", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "²": "^{2}",
        "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}", "…": r"\ldots ", "√": r"\sqrt ", "’": "'", "θ": r"\theta ", "ω": r"\omega ",
        "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "≡": r"\equiv ", "ℝ": r"\mathbb{R}", "，": ",", "：": ":",
    }
)  # fmt: skip
_NAMES = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|pi|theta|alpha|beta|gamma|lambda|omega"
)
_TEXT = r"\\text\{([^{}]*)\}"
_DIGITS = r"(?:\d+\.?\d*|\.\d+)"


Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _rules(*rules: tuple[str, str | Callable[[re.Match[str]], str]]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in rules)


def _repeating(match: re.Match[str]) -> str:
    """0.1\\overline{6} = (16 - 1) / 90."""
    whole, head, cycle = match.groups()
    above = int(whole + head + cycle) - int(whole + head)
    return rf"\frac{{{above}}}{{{10 ** len(head) * (10 ** len(cycle) - 1)}}}"


def _mixed(match: re.Match[str]) -> str:
    whole, above, under = (int(group) for group in match.groups())
    if not 0 < above < under:  # 2\frac{3}{2} is a product
        return match.group()
    return rf"(\frac{{{whole * under + above}}}{{{under}}})"


def _tower(match: re.Match[str]) -> str:
    """9^9^9 is 9^{9^{9}}, as in mathematics and in Python."""
    exponents = match.group().replace(" ", "").split("^")[1:]
    return "".join(f"^{{{one}" for one in exponents) + "}" * len(exponents)


_NOTATION = _rules(
    # How it looks is not what it is.
    (r"(?<!\\)\\!\s*|\\(?:displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])|\\phantom\s*(?:\{[^{}]*\}|-)?", ""),
    (r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
    (r"(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\\(?:hspace|vspace)\{[^{}]*\}|\s+", " "),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathnormal|vec|hat)\s?\{((?:[^{}]|\{[^{}]*\})*)\}", r" \1 "),
    (r"\\(?:mathrm|textbf|textit|textrm|textnormal|textsf|texttt|mbox|hbox|rm|operatorname|emph)\s?\{", r"\\text{"),
    (r"\\text\s+\{", r"\\text{"),
    (r"\\text\{ ?(-?[\d.,/]*\d) ([^{}]*)\}", r"\1\\text{\2}"),  # \text{14 cm}
    (r"_ ?(\\(?![dtc]?frac|sqrt)[A-Za-z]+)(?![A-Za-z{])", r"_{\1}"),  # M_\odot, not \log_\frac12
    (r"\\langle ?([^<>]*?,[^<>]*?)\\rangle|^ ?<([^<>=]*,[^<>=]*)> ?$", r"(\1\2)"),  # a vector; without a comma a mean
    (r"(?:^|(?<=\\in)) ?\\mathbb ?\{R\} ?$", r"(-\\infty , \\infty )"),
    # An angle at B is none at C: letters in order, not a product.
    (r"\\angle ?([A-Z]{2,4})(?![A-Za-z_])", r"\\angle_{\1}"),
    # Names of segments, lines and arcs are those of their ends; a conjugate has a small letter.
    (r"\\(?:overline|widehat|overleftrightarrow|overrightarrow|overarc|wideparen)\s?\{([A-Z]{2})\}", r" \1 "),
    (r"\\text\{\s*([\d.,;]*|[eid])\s*\}", r" \1 "),  # \mathrm{e}, \text{7}: mathematics in an upright font
    (r"\\(?:cdots|dots[cbm]?|ldots)(?![a-zA-Z])|\.\.\.+", r"\\ldots "),
    # Words and computer notation for signs.
    (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
    (r"\bnp\.(?=[a-z])", ""),
    (rf"(?<![\\a-zA-Z])(?=(?:{_NAMES})(?![a-zA-Z]))", r"\\"),
    (r"(?<![\\a-zA-Z])(?:infinity|inf|infty)(?![a-zA-Z])", r"\\infty "),
    (r"\\(?:leqslant|leq)(?![a-zA-Z])|<=", r"\\le "),
    (r"\\(?:geqslant|geq)(?![a-zA-Z])|>=", r"\\ge "),
    (r"\*\*", "^"),
    (r"(?: ?\^ ?(?:\d+|[A-Za-z])){2,}", _tower),
    (r"\\colon(?![a-zA-Z])", ":"),
    (r"\s?\\?%|\s?(?:\\text\{\s*)?\b(?:percent|percentage|pct)\b(?:\s*\})?", r"\\%"),
    (r"(?<=[a-zA-Z)}])'", r"^{\\prime}"),  # math-verify drops quotation marks: f' would be f
    (r"[\"`]|(?<!\w)'", ""),
    (r"\^\s?\{?\s?\\(?:circ|degree)\s?\}?|\\degree", r"^{\\circ}"),
    (r"\^\s?\{?\s?(?:\\text\{\s*)?(?:st|nd|rd|th)(?:\s*\})?\s?\}?(?![a-zA-Z])|(?<=\d)(?:st|nd|rd|th)$", ""),
    # Braces that LaTeX lets one leave out.
    (r"\\sqrt\s?\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"\\sqrt\s*((?:\[\d+\])?)\s*(\d|[a-zA-Z]|\\pi(?![a-zA-Z]))", r"\\sqrt\1{\2}"),
    (r"\\frac\s*(\d|[a-zA-Z]|\\pi(?![a-zA-Z]))(?=\s*[\d{a-zA-Z\\])", r"\\frac{\1}"),
    (r"(\\frac\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*(\d|[a-zA-Z]|\\pi(?![a-zA-Z]))", r"\1{\2}"),
    (r"\\frac\s+\{", r"\\frac{"),
    (r"_ ?(\\frac\{[^{}]*\}\{[^{}]*\})", r"_{\1}"),
    # Numbers. 3e8 is no multiple of Euler's number; 1 1/4 is no product; 1{,}000 is no list.
    (r"(?<=\d)\{,\}(?=\d{3})", ","),
    (r"(?<![\w.^_])[1-9]\d{0,2}(?: \d{3})+(?![\d.]| ?/)", lambda match: match.group().replace(" ", "")),  # 10 000
    (rf"(?<![\w.\\])({_DIGITS})[eE]([-+]?\d{{1,4}})(?!\w|\.\d)", r"\1 \\times 10^{\2}"),
    (rf"({_DIGITS}) ?(?:[xX*]|\\cdot|\\times) ?10 ?(?:\^|\*\*) ?\{{?([-+]?\d{{1,4}})\}}?", r"\1 \\times 10^{\2}"),
    (r"(?<=\d)\.(?=\s?[/*])", ""),  # -1./3
    (r"(?<![\w.])(\d{1,30})\.(\d{0,30})\\(?:overline|bar|dot)\s?\{(\d{1,30})\}", _repeating),
    (r"(?<![\w.])(\d{1,30})\.(\d{0,9}?)(\d{1,9}?)\3{2,} ?\\ldots *$", _repeating),
    (r"(?<![\w.^_}/]) ?(?<!\d )(\d{1,30}) (\d{1,30}) ?/ ?(\d{1,30})(?!\w|\.\d)", _mixed),
    (r"(?<![\w.^_}/]) ?(?<!\d )(\d{1,30}) ?\\frac\{(\d{1,30})\}\{(\d{1,30})\}", _mixed),
    (r" +", " "),
)  # fmt: skip
_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBERS = {word: number for number, word in enumerate(_ONES)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
_NUMBERS |= {
    f"{ten}{dash}{one}": _NUMBERS[ten] + _NUMBERS[one] for ten in _TENS for one in _ONES[1:10] for dash in "- "
}
_SETS = (
    (
        re.compile(r"(?:the set of )?(?:all )?(?:the )?real(?: number)?s|all real values(?: of [a-z])?"),
        r"(-\infty , \infty )",
    ),
    (re.compile(r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty set|\\\{ ?\\\}"), r"\emptyset"),
)
_JOINT = re.compile(
    r"\s*[,;]?\s*(?:\\text\{\s*,?\s*(?:and|or|und)\b[^{}\d\\]*\}|\\(?:lor|vee)(?![a-zA-Z])|\b(?:and|or)\b)\s*"
)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_MONEY = re.compile(r"^(-?)\s*(?:\\text\{\s*)?(?:\\?\$|[€£¥₹]|\\(?:pounds|euro)|USD|US\\?\$)(?:\s*\})?\s*")


def plain(text: str) -> str:
    """An answer in one notation, without its delimiters, its fonts and its final full stop."""
    text = re.sub(r"(?<!\\)(?:\$+|\\[()\[\]])", " ", text.translate(_CHARACTERS))
    text = re.sub(
        r"\\begin\{(?:aligned|align\*?|equation\*?|gathered)\}|\\end\{(?:aligned|align\*?|equation\*?|gathered)\}",
        " ",
        text,
    )
    for pattern, replacement in _NOTATION:
        text = pattern.sub(replacement, text)
    text = text.strip(" *_\n").rstrip(" .,;:") if not text.rstrip().endswith("\\ldots") else text.strip()
    text = _said(_MONEY.sub(r"\1", text))
    text = _JOINT.sub(", ", text) if not re.search(r"\\begin", text) else text
    return _without_thousands(text).strip()


def _said(text: str) -> str:
    """Words for a number or a set, if that is all: "six", "all real numbers", "no solutions"."""
    folded = " ".join(re.sub(_TEXT, r" \1 ", text).casefold().split())
    if folded in _NUMBERS:
        return str(_NUMBERS[folded])
    return next((value for pattern, value in _SETS if pattern.fullmatch(folded)), text)


def _without_thousands(text: str) -> str:
    """1,234 is a number unless it stands in brackets, (1,234), or every comma is one between numbers, 1,234,5."""
    if not _THOUSANDS.search(text):
        return text
    return "".join(
        _THOUSANDS.sub(lambda match: match.group().replace(",", ""), piece) if depth == 0 else piece
        for piece, depth in _by_depth(text)
    )


def _by_depth(text: str) -> list[tuple[str, int]]:
    """The runs of `text` and how many brackets (not braces of commands) they stand in."""
    runs, depth, start = [], 0, 0
    for match in re.finditer(r"\\[{}]|[()\[\]]", text):
        opens = match.group()[-1] in "([{"
        runs.append((text[start : match.start()], depth))
        depth = depth + 1 if opens else max(0, depth - 1)
        runs.append((match.group(), 1))
        start = match.end()
    return [*runs, (text[start:], depth)]


def parts(text: str, separators: str = ",;") -> list[str]:
    r"""What stands between `separators` outside of all brackets: "1, (2, 3)" is ["1", "(2, 3)"]."""
    found, depth, start, at = [], 0, 0, 0
    while at < len(text):
        character = text[at]
        if character == "\\" and text[at + 1 : at + 2] not in ("{", "}"):
            at += 2
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth <= 0 and character in separators:
            found.append(text[start:at].strip())
            start = at + 1
        at += 1
    found.append(text[start:].strip())
    return [part for part in found if part]


def bracketed(text: str) -> tuple[str, list[str], str] | None:
    r"""Opening bracket, parts, closing bracket of a tuple, interval or set, or None: "[0, 1)" is "[", [0, 1], ")"."""
    match = re.fullmatch(r"(\\\{|\\langle|[(\[])(.*)(\\\}|\\rangle|[)\]])", text, re.S)
    if match is None:
        return None
    opening, inside, closing = match.group(1), match.group(2), match.group(3)
    depth = 0
    for character in re.findall(r"[()\[\]{}]", inside.replace("\\{", "{").replace("\\}", "}")):
        depth += 1 if character in "([{" else -1
        if depth < 0:  # (1,2),(3,4)
            return None
    return (opening, parts(inside), closing) if depth == 0 else None
