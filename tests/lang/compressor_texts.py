"""Compressor texts compiled on their own, as tests need them."""

from __future__ import annotations

from coccl_dsl.diagnostics import Source
from coccl_dsl.lang import ast
from coccl_dsl.lang.parse import parse_binding, parse_comp
from coccl_dsl.wire.codec import Codec
from coccl_dsl.wire.compile import compile_codec
from coccl_dsl.wire.scope import Scope, bind

WRAPPED = parse_binding("int8")


def compile_compressors(source: Source, dtype: str = "bf16", *, wrapped: ast.Binding | None = None) -> list[Codec]:
    """All compressors of a text with their default parameters; `wrapped` stands where one is wrapped and none is the default."""
    parsed = parse_comp(source)
    scope = Scope.of(parsed.uses, source.path, (source.path,) if source.path else ())
    scope.add(parsed.compressors, scope)
    done = []
    for d in parsed.compressors:
        open_ones = [p.name for p in d.params if wrapped and p.kind == "compressor" and p.default is None]
        args = tuple((name, wrapped) for name in open_ones if wrapped)
        done.append(compile_codec(bind(ast.Binding(d.name_span, d.name, args), scope), dtype))
    return done


def codec(text: str, dtype: str = "bf16") -> Codec:
    """One compressor of a text, or of a binding such as `int4(group=64)`."""
    if "{" in text:
        return compile_compressors(Source("<text>", text), dtype)[0]
    return compile_codec(bind(parse_binding(text), Scope()), dtype)
