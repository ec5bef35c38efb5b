"""Both languages for Pygments: `pygmentize x.coll`, rich, Sphinx, notebooks. Registered as an entry point under `coll` and `comp`.

Many keywords are names elsewhere (a field may be called `code`, a state `size`), so those are keywords only where the grammar has them.
"""

from __future__ import annotations

from pygments.lexer import RegexLexer, bygroups, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from .integers import WRITTEN
from .program import KINDS

# Never anything but keywords where they stand as words of their own.
KEYWORDS = (
    "allow as basis claim collective compressor decompress exact flag for frame in inout let mesh nonfinite of only out "
    "overlap phase pipeline ranks require schedule scratch send state to tune update use when with yield"
).split()
OPERATORS = ("and", "or", "not", "mod", "div")
TYPES = "s2 s4 s8 u1 u2 u4 u8 u16 f16 bf16 f32 e4m3 e5m2 e2m1 e8m0 input".split()


class CocclLexer(RegexLexer):
    """Algorithms (.coll) and compressors (.comp) of coccl_dsl."""

    name = "Coccl"
    aliases = ["coll", "comp"]
    filenames = ["*.coll", "*.comp"]
    mimetypes = ["text/x-coll", "text/x-comp"]
    url = "https://github.com/coccl-dsl/coccl-dsl"

    tokens = {
        "root": [
            (r"#[^\n]*", Comment.Single),
            (r'"[^"\n]*"', String),
            (r"\s+", Text),
            (r"(collective|compressor|phase)(\s+)([A-Za-z_]\w*)", bygroups(Keyword, Text, Name.Class)),
            (r"(nonfinite)(\s+)(code)\b", bygroups(Keyword, Text, Keyword)),
            (r"(flag)(\s+)([A-Za-z_]\w*)(\s+)(code)\b", bygroups(Keyword, Text, Name, Text, Keyword)),
            (r"(size)(?=\s+[A-Za-z_]\w*\s*=)", Keyword),
            (r"(first)(?=\s+[A-Za-z_])", Keyword),
            (r"(sender|both)(?=\s*(\{|first\b|\n|[a-z]))", Keyword),
            (r"(wire)(?=\s*(\{|\(|[A-Za-z_]\w*\s*(\[|:)))", Keyword),
            (r"compress(?=\s*\([A-Za-z_]\w*\)\s*\{)", Keyword),
            (r"range(?=\s*\()", Keyword),
            (words((*KINDS, "divergent"), suffix=r"\b"), Name.Builtin.Pseudo),
            (words(OPERATORS, suffix=r"\b"), Operator.Word),
            (r"(decompress|basis)(?=\s*\()", Name.Function),
            (words(KEYWORDS, suffix=r"\b"), Keyword),
            (words(TYPES, suffix=r"\b"), Keyword.Type),
            (words(tuple(WRITTEN), suffix=r"(?=\s*\()"), Name.Builtin),
            (r"[A-Za-z_]\w*(?=\s*\()", Name.Function),
            (r"[A-Za-z_]\w*", Name),
            (r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", Number),
            (r"==|!=|<=|>=|<<|>>|\+=|[-+*/=<>&|^]", Operator),
            (r"[][(){},:.]", Punctuation),
        ]
    }
