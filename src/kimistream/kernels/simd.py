"""Sixteen-lane vectors for Numba: two types (16 x float32, 16 x int32) and the operations on them.

Knows: how a vector operation becomes LLVM code on AVX-512, AVX2, NEON and anything else. One source
serves them all: LLVM splits a 16-lane operation into as many registers as the CPU needs, lane by
lane, so every CPU gives the same bits. Only the table lookup has a form of its own for each.
Does not know: what is computed with it.

Inside a function compiled by Numba, `F` values are 16 float32 lanes and `I` values 16 int32 lanes.
Addresses are `types.voidptr` (from `ptr(array)` or `at(address)`), and every offset is in bytes.

Trap: Numba frees an array after its last visible use. `ptr(np.empty(...))` therefore dangles: scratch
must belong to the caller and be passed in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from .folder import GENERIC, config, host_features

LANES = 16


# ------------------------------------------------------------------ the two vector types
class Vec(types.Type):
    """A Numba type of 16 lanes: `Vec("f32")` or `Vec("i32")`."""

    def __init__(self, elem: str) -> None:
        self.elem = elem
        super().__init__(f"Vec16({elem})")


F, I = Vec("f32"), Vec("i32")
P, N = types.voidptr, types.intp

F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
VF, VI, VB, VH = (ir.VectorType(t, LANES) for t in (F32, I32, I8, I16))


@register_model(Vec)
class VecModel(models.PrimitiveModel):
    """A vector is held in registers as it is; it never lives in an array or a tuple."""

    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, VF if fe_type.elem == "f32" else VI)


def features() -> frozenset[str]:
    """The CPU features to write code for, by LLVM's names (NUMBA_CPU_FEATURES wins over the host's).

    NEON is part of every 64-bit ARM CPU, so it is there even where no list of features names it.
    """
    if GENERIC:
        return frozenset()
    chosen = getattr(config, "CPU_FEATURES", None)
    flags = [] if chosen is None else chosen.split(",")
    found = host_features() if chosen is None else frozenset(f[1:] for f in flags if f[:1] == "+")
    arm = llvm.get_process_triple().startswith(("aarch64", "arm64"))
    return found | {"neon"} if arm and "-neon" not in flags else found


FEAT = features()


# ------------------------------------------------------------------ tools for writing intrinsics
def op(ret: Any, *args: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of the fixed signature `ret(*args)` from a function of (IR builder, *values)."""

    def decorate(generate: Callable[..., Any]) -> Any:
        def typing(context: Any, *actual: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                result = generate(builder, *values)
                return context.get_dummy_value() if ret is types.void else result

            return ret(*args), codegen

        names = ",".join(f"a{i}" for i in range(len(args)))
        space = {"typing": typing}
        # Numba reads the number of arguments from the signature, so it has to be spelled out.
        exec(f"def {generate.__name__}(context,{names}): return typing(context,{names})", space)
        made = space[generate.__name__]
        made.__doc__ = generate.__doc__
        made.__module__ = generate.__module__
        return intrinsic(made)

    return decorate


def load(b: Any, p: Any, off: Any, ty: Any, align: int = 1) -> Any:
    """IR: load a value of type `ty` from byte offset `off` (or None) of `p`."""
    q = b.gep(p, [off], source_etype=I8) if off is not None else p
    return b.load(b.bitcast(q, ty.as_pointer()), align=align)


def store(b: Any, v: Any, p: Any, off: Any) -> None:
    """IR: store `v` at byte offset `off` of `p`."""
    b.store(v, b.bitcast(b.gep(p, [off], source_etype=I8), v.type.as_pointer()), align=4)


def const(v: int) -> Any:
    """IR: an int32 vector of one constant."""
    return ir.Constant(VI, [v] * LANES)


def splat_(b: Any, x: Any, lanes: int = LANES) -> Any:
    """IR: a scalar in every lane."""
    v = b.insert_element(ir.Constant(ir.VectorType(x.type, lanes), ir.Undefined), x, I32(0))
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def call(b: Any, name: str, ret: Any, *args: Any) -> Any:
    """IR: call the LLVM intrinsic `name`."""
    kind = ir.FunctionType(ret, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), args)


def take(b: Any, v: Any, start: int, count: int) -> Any:
    """IR: the `count` lanes of `v` from `start` on."""
    index = ir.Constant(ir.VectorType(I32, count), list(range(start, start + count)))
    return b.shuffle_vector(v, v, index)


def half(b: Any, v: Any, h: int) -> Any:
    """IR: the lower (0) or the upper (1) eight lanes."""
    return take(b, v, 8 * h, 8)


def join(b: Any, low: Any, high: Any) -> Any:
    """IR: two vectors one after the other."""
    n = 2 * low.type.count
    return b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, n), list(range(n))))


# ------------------------------------------------------------------ addresses
@intrinsic
def ptr(context, array):
    """The address of an array's first element. The array must stay alive: see the trap above."""

    def codegen(context, builder, signature, args):
        proxy = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        return builder.bitcast(proxy.data, cgutils.voidptr_t)

    return types.voidptr(array), codegen


@op(P, types.int64)
def at(b, address):
    """A raw integer address as a pointer."""
    return b.inttoptr(address, cgutils.voidptr_t)


@op(types.int64, P)
def address_of(b, p):
    """A pointer as an integer address."""
    return b.ptrtoint(p, I64)


@op(P, P, N)
def step(b, p, off):
    """The pointer `off` bytes further."""
    return b.gep(p, [off], source_etype=I8)


# ------------------------------------------------------------------ loads and stores (any alignment)
@op(F, P, N)
def ldf(b, p, off):
    """16 float32."""
    return load(b, p, off, VF)


@op(I, P, N)
def ldi(b, p, off):
    """16 int32."""
    return load(b, p, off, VI)


@op(types.float32, P, N)
def ld1(b, p, off):
    """One float32."""
    return load(b, p, off, F32)


@op(types.int32, P, N)
def ld_i32(b, p, off):
    """One int32."""
    return load(b, p, off, I32)


@op(types.int64, P, N)
def ld_i64(b, p, off):
    """One int64."""
    return load(b, p, off, I64)


@op(types.uint8, P, N)
def ld_u8(b, p, off):
    """One byte."""
    return load(b, p, off, I8)


@op(I, P, N)
def zx16(b, p, off):
    """16 half-words (32 bytes), zero-extended to int32."""
    return b.zext(load(b, p, off, VH), VI)


@op(types.void, P, N, F)
def stf(b, p, off, v):
    """Store 16 float32."""
    store(b, v, p, off)


@op(types.void, P, N, types.float32)
def st1(b, p, off, v):
    """Store one float32."""
    store(b, v, p, off)


@op(types.void, P, N, types.int64)
def st_i64(b, p, off, v):
    """Store one int64."""
    store(b, v, p, off)


@op(types.void, P, N, types.uint8)
def st_u8(b, p, off, v):
    """Store one byte."""
    b.store(v, b.gep(p, [off], source_etype=I8), align=1)


# ------------------------------------------------------------------ lane by lane
@op(F, types.float32)
def splat(b, x):
    """The same float32 in every lane."""
    return splat_(b, x)


@op(I, types.int32)
def isplat(b, x):
    """The same int32 in every lane."""
    return splat_(b, x)


@op(F, F, F, F)
def fma(b, x, y, z):
    """x * y + z, rounded once."""
    return call(b, "llvm.fma.v16f32", VF, x, y, z)  # llvmlite's own builder.fma is scalar only


@op(F, I)
def as_f(b, x):
    """The bits of an int32 vector as float32."""
    return b.bitcast(x, VF)


@op(I, F)
def as_i(b, x):
    """The bits of a float32 vector as int32."""
    return b.bitcast(x, VI)


@op(I, I, I)
def imax(b, x, y):
    """The larger of two signed int32."""
    return b.select(b.icmp_signed(">", x, y), x, y)


@op(F, F)
def vabs(b, v):
    """|v|: the sign bit cleared."""
    return b.bitcast(b.and_(b.bitcast(v, VI), const(0x7FFFFFFF)), VF)


@op(F, F)
def vneg(b, v):
    """-v: the sign bit flipped."""
    return b.bitcast(b.xor(b.bitcast(v, VI), const(0x80000000)), VF)


@op(F, F, F, F, F)
def vsel_lt(b, x, y, yes, no):
    """`yes` where x < y, otherwise `no` (also where either is NaN)."""
    return b.select(b.fcmp_ordered("<", x, y), yes, no)


# ------------------------------------------------------------------ across lanes
@op(F, F, F)
def evens(b, low, high):
    """Lanes 0, 2, 4 ... of 32 lanes."""
    return b.shuffle_vector(low, high, ir.Constant(VI, list(range(0, 2 * LANES, 2))))


@op(F, F, F)
def odds(b, low, high):
    """Lanes 1, 3, 5 ... of 32 lanes."""
    return b.shuffle_vector(low, high, ir.Constant(VI, list(range(1, 2 * LANES, 2))))


@op(types.float32, F)
def hsum(b, v):
    """The sum of the lanes by halving, 16 -> 8 -> 4 -> 2 -> 1: the only order sums are closed in."""
    n = LANES // 2
    while n:
        v = b.fadd(take(b, v, 0, n), take(b, v, n, n))
        n //= 2
    return b.extract_element(v, I32(0))


def reduced(b: Any, v: Any, join_two: Callable[[Any, Any], Any]) -> Any:
    """IR: `join_two` over the lanes by halving."""
    n = LANES // 2
    while n:
        v = join_two(take(b, v, 0, n), take(b, v, n, n))
        n //= 2
    return b.extract_element(v, I32(0))


@op(types.float32, F)
def hmax(b, v):
    """The largest lane (lanes without NaN)."""
    return reduced(b, v, lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@op(types.int32, I)
def himax(b, v):
    """The largest lane, as signed int32."""
    return reduced(b, v, lambda x, y: b.select(b.icmp_signed(">", x, y), x, y))


@op(types.float32, F, N)
def lane(b, v, i):
    """Lane `i`, 0..15."""
    return b.extract_element(v, b.trunc(i, I32))


def _looked_up(b: Any, table: Any, i: Any) -> Any:
    """IR: table[i & 15] lane by lane, `table` being a value of 16 floats."""
    if "avx512f" in FEAT:
        return call(b, "llvm.x86.avx512.permvar.sf.512", VF, table, i)
    if "avx2" in FEAT:
        eight, out = ir.VectorType(F32, 8), []
        for h in (0, 1):
            ih = half(b, i, h)
            low, high = (call(b, "llvm.x86.avx2.permps", eight, half(b, table, k), ih) for k in (0, 1))
            upper = b.icmp_signed(
                "<", b.shl(ih, ir.Constant(ih.type, [28] * 8)), ir.Constant(ih.type, [0] * 8)
            )
            out.append(b.select(upper, high, low))
        return join(b, *out)
    if "neon" in FEAT:
        # tbl looks up bytes in 64 bytes, which is the whole table: byte k of lane i is table byte 4*i + k.
        sixteen, four = ir.VectorType(I8, 16), ir.VectorType(F32, 4)
        parts = [b.bitcast(take(b, table, 4 * k, 4), sixteen) for k in range(4)]
        bytes_ = b.add(b.mul(b.and_(i, const(15)), const(0x04040404)), const(0x03020100))
        out = []
        for k in range(4):
            index = b.bitcast(take(b, bytes_, 4 * k, 4), sixteen)
            out.append(b.bitcast(call(b, "llvm.aarch64.neon.tbl4.v16i8", sixteen, *parts, index), four))
        return join(b, join(b, out[0], out[1]), join(b, out[2], out[3]))
    slot = cgutils.alloca_once_value(b, table)  # any other CPU: through memory
    return _gathered(b, b.bitcast(slot, cgutils.voidptr_t), i)


def _gathered(b: Any, p: Any, i: Any) -> Any:
    """IR: float32 number i & 15 behind `p`, one lane after the other."""
    v = ir.Constant(VF, ir.Undefined)
    for j in range(LANES):
        k = b.shl(b.zext(b.and_(b.extract_element(i, I32(j)), I32(15)), I64), I64(2))
        v = b.insert_element(v, load(b, p, k, F32), I32(j))
    return v


def looked_up_at(b: Any, p: Any, i: Any) -> Any:
    """IR: like `_looked_up`, the table being the 16 float32 at `p`."""
    if FEAT & {"avx512f", "avx2", "neon"}:
        return _looked_up(b, load(b, p, None, VF), i)
    return _gathered(b, p, i)


# ------------------------------------------------------------------ operators
def _bind(symbol: Callable[..., Any], kind: Vec, instruction: str, with_integer: bool) -> None:
    """`kind symbol kind`, or `kind symbol integer` (the integer in every lane), as one LLVM instruction."""

    @type_callable(symbol)
    def type_operator(context: Any) -> Any:
        def typer(x: Any, y: Any) -> Any:
            if x == kind and (isinstance(y, types.Integer) if with_integer else y == kind):
                return kind
            return None

        return typer

    @lower_builtin(symbol, kind, types.Integer if with_integer else kind)
    def lower_operator(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, y = values
        if with_integer:
            width = y.type.width
            y = builder.trunc(y, I32) if width > 32 else builder.zext(y, I32) if width < 32 else y
            y = splat_(builder, y)
        return getattr(builder, instruction)(x, y)


for _symbol, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _bind(_symbol, F, _name, False)
for _symbol, _name in (
    (operator.add, "add"),
    (operator.sub, "sub"),
    (operator.and_, "and_"),
    (operator.or_, "or_"),
    (operator.xor, "xor"),
):
    _bind(_symbol, I, _name, False)
for _symbol, _name in (
    (operator.add, "add"),
    (operator.sub, "sub"),
    (operator.mul, "mul"),
    (operator.and_, "and_"),
    (operator.or_, "or_"),
    (operator.xor, "xor"),
    (operator.lshift, "shl"),
    (operator.rshift, "lshr"),
):
    _bind(_symbol, I, _name, True)
