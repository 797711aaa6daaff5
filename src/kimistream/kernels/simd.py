"""Sixteen-lane vectors for Numba: two types (16 x float32, 16 x int32) and the operations on them.

Knows: how a vector operation becomes LLVM code, on AVX-512, AVX2, NEON and anything else.
Does not know: what is computed with it.
"""
import operator

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic, models, overload, register_model

# ------------------------------------------------------------------ vector types
class Vec(types.Type):
    def __init__(self, elem):
        self.elem = elem
        super().__init__(f"Vec16({elem})")
F, I = Vec("f32"), Vec("i32")
F32, I8, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
VF, VI, VB = (ir.VectorType(t, 16) for t in (F32, I32, I8))

@register_model(Vec)
class VecModel(models.PrimitiveModel):
    def __init__(self, dmm, fe):
        super().__init__(dmm, fe, VF if fe.elem == "f32" else VI)

def features():
    if config.CPU_FEATURES is not None:
        return {f[1:] for f in config.CPU_FEATURES.split(",") if f[:1] == "+"}
    return {k for k, v in llvm.get_host_cpu_features().items() if v}
FEAT = features()

# ------------------------------------------------------------------ intrinsics
def op(ret, *args):
    """Make an intrinsic with a fixed signature from a function of (builder, *values)."""
    def deco(gen):
        def typing(ctx, *a):
            def codegen(context, builder, sig, vals):
                r = gen(builder, *vals)
                return context.get_dummy_value() if ret is types.void else r
            return ret(*args), codegen
        names = ",".join(f"a{i}" for i in range(len(args)))
        ns = {"typing": typing}
        exec(f"def {gen.__name__}(ctx,{names}): return typing(ctx,{names})", ns)
        return intrinsic(ns[gen.__name__])
    return deco

def load(b, p, off, ty, align=1):
    q = b.gep(p, [off], source_etype=I8) if off is not None else p
    return b.load(b.bitcast(q, ty.as_pointer()), align=align)
def store(b, v, p, off):
    b.store(v, b.bitcast(b.gep(p, [off], source_etype=I8), v.type.as_pointer()), align=4)
def const(v):
    return ir.Constant(VI, [v] * 16)
def splat_(b, x):
    v = b.insert_element(ir.Constant(ir.VectorType(x.type, 16), ir.Undefined), x, I32(0))
    return b.shuffle_vector(v, v, ir.Constant(VI, [0] * 16))
def call(b, name, ret, *args):
    return b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(ret, [a.type for a in args]), name), args)
def half(b, v, h):
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, 8), list(range(8 * h, 8 * h + 8))))

@intrinsic
def ptr(ctx, arr):                       # data pointer of an array
    def codegen(context, builder, sig, args):
        return builder.bitcast(cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0]).data, cgutils.voidptr_t)
    return types.voidptr(arr), codegen

P, N = types.voidptr, types.intp
@op(F, P, N)
def ldf(b, p, off): return load(b, p, off, VF)                       # byte offsets everywhere
@op(I, P, N)
def ldi(b, p, off): return load(b, p, off, VI)
@op(types.float32, P, N)
def ld1(b, p, off): return load(b, p, off, F32)
@op(I, P, N)
def zx8(b, p, off): return b.zext(load(b, p, off, VB), VI)           # 16 bytes -> 16 int32
@op(I, P, N)
def sx8(b, p, off): return b.sext(load(b, p, off, VB), VI)
@op(types.void, P, N, F)
def stf(b, p, off, v): store(b, v, p, off)
@op(types.void, P, N, types.float32)
def st1(b, p, off, v): store(b, v, p, off)
@op(F, types.float32)
def splat(b, x): return splat_(b, x)
@op(F, F, F, F)
def fma(b, x, y, z): return call(b, "llvm.fma.v16f32", VF, x, y, z)   # llvmlite's own b.fma is scalar only
@op(F, I)
def as_f(b, x): return b.bitcast(x, VF)
@op(I, F)
def as_i(b, x): return b.bitcast(x, VI)
@op(F, F, I)
def lut(b, t, i):                        # t[i & 15], lane by lane
    if "avx512f" in FEAT:
        return call(b, "llvm.x86.avx512.permvar.sf.512", VF, t, i)
    if "avx2" in FEAT:
        V8 = ir.VectorType(F32, 8); out = []
        for h in (0, 1):
            ih = half(b, i, h)
            lo, hi = (call(b, "llvm.x86.avx2.permps", V8, half(b, t, k), ih) for k in (0, 1))
            m = b.icmp_signed("<", b.shl(ih, ir.Constant(ih.type, [28] * 8)), ir.Constant(ih.type, [0] * 8))
            out.append(b.select(m, hi, lo))
        return b.shuffle_vector(*out, ir.Constant(VI, list(range(16))))
    slot = cgutils.alloca_once_value(b, t)   # any other target: through memory (NEON: use tbl)
    v = ir.Constant(VF, ir.Undefined)
    for j in range(16):
        k = b.and_(b.extract_element(i, I32(j)), I32(15))
        v = b.insert_element(v, b.load(b.gep(slot, [I32(0), k])), I32(j))
    return v
@op(types.float32, F)
def hsum(b, v):                          # tree 16 -> 8 -> 4 -> 2 -> 1
    n = 8
    while n:
        m = lambda s: ir.Constant(ir.VectorType(I32, n), list(range(s, s + n)))
        v = b.fadd(b.shuffle_vector(v, v, m(0)), b.shuffle_vector(v, v, m(n)))
        n //= 2
    return b.extract_element(v, I32(0))
@op(I, F)
def round_i(b, v): return b.fptosi(call(b, "llvm.rint.v16f32", VF, v), VI)
@op(F, I)
def to_f(b, v): return b.sitofp(v, VF)
@op(F, F, F)
def vmin(b, x, y): return b.select(b.fcmp_ordered("<", x, y), x, y)
@op(F, F, F)
def vmax(b, x, y): return b.select(b.fcmp_ordered(">", x, y), x, y)

def operators():
    def bind(fn, ty, other, instr):
        @intrinsic
        def impl(ctx, a, c):
            def codegen(context, b, sig, v):
                y = v[1] if other is None else splat_(b, b.trunc(v[1], I32))
                return getattr(b, instr)(v[0], y)
            return ty(ty, ty if other is None else types.int64), codegen
        @overload(fn)
        def ov(a, c):
            if a == ty and (c == ty if other is None else isinstance(c, types.Integer)):
                return lambda a, c: impl(a, c)
    for fn, i in ((operator.add, "fadd"), (operator.mul, "fmul"), (operator.truediv, "fdiv")): bind(fn, F, None, i)
    bind(operator.or_, I, None, "or_")
    for fn, i in ((operator.and_, "and_"), (operator.lshift, "shl"), (operator.rshift, "lshr"), (operator.add, "add")): bind(fn, I, int, i)
operators()

