"""The statements that programs are made of: text with blanks, which `tests.fuzz.blanks` fills in.

Blanks: {a} any tensor, {n} of numbers, {r} real, {f} floating, {c} complex, {i} integers, {b} bools, {z} floating or complex;
{f2} with 2 dims or more; {sq} a stack of square matrices. The first is what the others go with: {o} an operand that
broadcasts with it, {same} one of its shape, {d} a dim, {e} another dim, {ds} some dims, {k} keepdim, {x} a number,
{sub} an index expression, {rows} looked-up rows, {w} a write-through target, {li} unique indices into dim {d}, {dup} with repetitions.

Some are narrower than they could be, where torch itself gives one thing here and another there: {spread} floats none of which
lie in one place, {some2} floats that there are, {filled} a tensor in memory that is all some tensor's; `max_pool1d` without indices, whose strides are others
when no gradient is recorded, only of tensors that lie row by row in dims of size 1 too; `kron` of copies, since it keeps views of
what it is given for its gradient, of which torch does not see that they are written to.
"""

from __future__ import annotations

ELEMENTWISE = """
torch.add({n}, {o}) | {n} - {o} | {n} * {o} | {z} / {o} | torch.maximum({r}, {same}) | torch.minimum({r}, {same})
torch.exp({f}.clamp(max=3)) | torch.tanh({z}) | torch.sigmoid({f}) | torch.relu({f}) | F.gelu({f}) | F.silu({f})
torch.sin({z}) | torch.abs({n}) | -{n} | torch.sign({r}) | torch.floor({f}) | torch.round({f}) | {f}.clamp({x}, {x})
{z} ** 2 | torch.sqrt({f}.abs() + 1) | torch.log({f}.abs() + 0.5) | torch.rsqrt({f} ** 2 + 1) | torch.erf({f})
torch.addcmul({z}, {same}, {same}, value=2) | torch.addcdiv({f}, {same}, {same}.abs() + 1) | torch.lerp({f}, {same}, 0.25)
torch.hypot({f}, {same}) | torch.atan2({f}, {same}) | torch.where({b}, {o}, {x}) | torch.where({r} > 0, {same}, {o})
{r} > {o} | {r} <= {o} | {a} == {o} | {a} != {o} | torch.isnan({f}) | torch.isfinite({f}) | torch.logical_and({a}, {o})
~{b} | {b} & {same} | torch.bitwise_or({b}, {same}) | {i} & {same} | {i} % 3 | {i} // 2 | torch.fmod({f}, 0.75) | torch.remainder({r}, 2)
{f} * inf | {f} / 0 | {f} * nan | {n} * 0 | torch.nan_to_num({f}) | torch.heaviside({f}, {same}) | F.leaky_relu({f})
F.softplus({f}) | F.elu({f}) | F.hardtanh({f}) | torch.xlogy({f}, {same}.abs() + 1) | torch.copysign({f}, {same})
torch.float_power({f}.abs() + 1, {x}) | torch.rsub({n}, {o}) | torch.square({z}) | torch.reciprocal({z} * {z} + 3)
torch.clamp({f}, {same}, {same}.abs() + 1) | torch.logaddexp({f}, {same}) | torch.fmax({f}, {same}) | torch.trunc({f}) | torch.frac({f}) | torch.signbit({r})
torch.logit({f}.sigmoid()) | torch.expm1({f}.clamp(max=2)) | torch.log1p({f}.abs()) | F.mish({f}) | F.hardswish({f}) | F.hardsigmoid({f}) | F.celu({f}) | F.logsigmoid({f})
F.threshold({f}, 0, 0.5) | F.softshrink({f}) | F.tanhshrink({f}) | {z}.sgn() | torch.isclose({f}, {same}) | torch.logical_xor({a}, {o}) | torch.frexp({f}) | torch.gcd({i}, {same})
{i} << 1 | {i} ^ {same} | torch.floor_divide({r}, 2) | torch.ldexp({f}, {same}.detach().round()) | torch.pow({f}.abs() + 1, {same}) | torch.special.xlog1py({f}, {same}.abs())
torch.special.entr({f}) | torch.special.i0({f}) | torch.special.ndtr({f}) | torch.special.log_ndtr({f}) | torch.digamma({f}.abs() + 1) | torch.lgamma({f}.abs() + 1) | torch.special.erfcx({f}) | torch.sinc({f}) | torch.exp2({f}.clamp(max=3)) | torch.log2({f}.abs() + 1)
torch.logaddexp2({f}, {same}) | torch.asinh({z}) | torch.acosh({f}.abs() + 1) | torch.atanh({f}.tanh() * 0.5) | torch.div({f}, {o}, rounding_mode='floor') | torch.div({f}, 0.75, rounding_mode='trunc') | torch.nextafter({f}, {same}) | torch.lcm({i}, {same}) | torch.logical_or({a}, {o}) | torch.logical_not({a})
torch.isposinf({f}) | torch.isreal({z}) | torch.lerp({f}, {same}, {same}) | torch.clamp_min({f}, {same}) | torch.isin({r}, {o0}) | F.selu({f}) | F.relu6({f}) | F.softsign({f}) | F.hardshrink({f}) | F.gelu({f}, approximate='tanh') | torch.fmin({f}, {same}) | torch.deg2rad({f})
torch.addcdiv({f}, {same}, {same}.abs() + 1, value={x}) | torch.addcmul({f}, {same}, {same}, value={x}) | torch.sub({f}, {same}, alpha={x}) | torch.special.polygamma(1, {f}.abs() + 1) | {i} >> 1 | 2 ** {f}.clamp(max=3) | 1 / ({f}.abs() + 1) | 3 - {n} | {f}.abs() ** 0.5
"""

CASTS = """
{a}.to(torch.float64) | {r}.to(torch.int64) | {a}.bool() | {n}.to(torch.complex128) | {f}.to(torch.float32)
{f}.to(torch.bfloat16) | {a}.double() | {i}.to(torch.int32) | {b}.to(torch.int64) | {z}.clone() | {a}.detach() | {a}.contiguous()
{f}.detach().clone() | {a}.clone(memory_format=torch.contiguous_format) | {f4}.contiguous(memory_format=torch.channels_last)
torch.zeros_like({a}) | torch.ones_like({a}) | torch.full_like({f}, {x}) | {a}.new_zeros(2, 3) | {a}.new_ones(({s},)) | {f}.type(torch.float64)
"""

COMPLEX = """
torch.view_as_real({c}) | {c}.real | {c}.imag | {c}.conj() | {c}.abs() | {c}.angle() | {c}.resolve_conj() | {c}.mH
torch.complex({f}, {same}) | torch.polar({f}.abs(), {same}) | torch.view_as_complex({pair}) | {c}.conj() * {same} | {c} * 1j
torch.fft.fft({z1}) | torch.fft.ifft({z1}, dim={d}) | torch.fft.rfft({f1}, dim={d}) | torch.fft.fft2({z2}) | torch.fft.fftshift({z1})
torch.fft.irfft({z1}) | torch.fft.fftn({z1}) | torch.fft.rfft2({f2}) | torch.fft.hfft({c1}) | torch.fft.fft({z1}, n=4, norm="ortho")
torch.fft.ihfft({f1}) | torch.fft.rfftn({f1}) | torch.fft.irfft2({c2}) | torch.fft.ifftshift({z1}, dim={d}) | torch.fft.fftn({z1}, dim=({d},)) | torch.fft.ifftn({z2}, s=(3, 2), dim=(0, 1)) | {c}.conj().imag | torch.resolve_neg({c}.conj().imag) | torch.angle({r}) | torch.conj_physical({z})
"""

REDUCTIONS = """
{n}.sum() | {n}.sum({d}) | {n}.sum({ds}, keepdim={k}) | {z}.mean() | {z}.mean({ds}, keepdim={k}) | {n}.prod() | {n}.prod({d}, keepdim={k})
{r}.amax({ds}, keepdim={k}) | {r}.amin({d}) | {r}.max() | {r}.min() | {r1}.max({d}, keepdim={k}) | {r1}.min({d}) | {a}.all() | {a}.any()
{a1}.all({d}, keepdim={k}) | {a1}.any({d}) | {f}.var() | {f}.var({ds}, keepdim={k}) | {f}.std({d}) | torch.var_mean({f}, {ds}, correction=0)
torch.std({f}, {ds}, correction=2) | {f}.nansum({d}) | {f}.nanmean({d}) | torch.logsumexp({f1}, {ds}, keepdim={k}) | F.softmax({f1}, {d})
F.log_softmax({f1}, {d}) | F.softmin({f1}, {d}) | torch.linalg.vector_norm({z}) | torch.linalg.vector_norm({z}, 2, {ds}, keepdim={k})
torch.linalg.vector_norm({f}, inf, {d}) | torch.linalg.vector_norm({f}, 1, {ds}) | torch.linalg.vector_norm({f}, 0, {d}) | {f2}.norm(dim={ds})
torch.linalg.matrix_norm({f2}) | torch.norm({f}, 3, {d}) | torch.count_nonzero({a}, {d}) | {r1}.aminmax(dim={d}) | torch.aminmax({r})
F.normalize({f1}, dim={d}) | torch.cdist({f2}, {f2}) | torch.dist({f}, {same}) | {n}.sum({ds}, dtype=torch.float64) | {f1}.renorm(2, {d}, 1.5)
F.cosine_similarity({f1}, {same} + 0.375, dim={d}) | torch.trapezoid({f1}, dim={d}) | {r1}.diff(dim={d}) | torch.histc({f}.detach(), 4, -2, 2)
torch.std_mean({f}, {ds}) | torch.cumulative_trapezoid({f1}, dim={d}) | torch.gradient({f1}, dim={d}) | {n}.sum_to_size({first}.shape[1:]) | torch.linalg.norm({f2}.detach(), 'nuc')
{a2}.all((0, 1)) | {a1}.any(({d},), keepdim={k}) | torch.count_nonzero({a}, ({d},)) | {f}.nansum({ds}) | {f}.nanmean({ds}, keepdim={k}) | torch.linalg.matrix_norm({f2}, 1) | torch.linalg.matrix_norm({f2}, inf, keepdim={k}) | torch.linalg.norm({z2}) | torch.pairwise_distance({f2}, {same}) | torch.cdist({f2}, {f2}, p=1.0) | torch.cdist({f2}, {f2}, p=inf)
F.softmax({f1}, {d}, dtype=torch.float64) | {n}.prod(dtype=torch.float64) | torch.trapezoid({f1}, {same}, dim={d}) | torch.cumulative_trapezoid({f1}, dx=0.5, dim={d})
{a}.all(()) | {a}.any((), keepdim={k}) | {n}.detach().sum({ds}, dtype=torch.int64) | {r1}.detach().cumsum({d}, dtype=torch.int64)
"""

SCANS = """
{n1}.cumsum({d}) | {n1}.cumprod({d}) | {r1}.cummax({d}) | {r1}.cummin({d}) | torch.logcumsumexp({f1}, {d})
{r1}.sort({d}, stable=True) | {r1}.sort({d}, descending=True, stable=True) | {r1}.argsort({d}, stable=True) | torch.msort({r1})
{f1}.topk(2, {d}).values | {f1}.topk({s}, {d}, largest=False).values | {r}.argmax() | {r1}.argmax({d}, keepdim={k}) | {r1}.argmin({d})
{f1}.kthvalue(1, {d}).values | {spread}.median({d}).values | {f}.median() | {f}.nanmedian() | {f1}.mode({d}).values | {f1}.quantile(0.25, {d})
torch.searchsorted(put([-1.0, 0.0, 1.0], 3).double(), {f}.detach().double()) | torch.bucketize({f}.detach().double(), put([-1.0, 0.0, 1.0], 4).double())
{r1}.unique() | torch.unique_consecutive({r1}) | torch.bincount({i}.flatten().abs()) | torch.nonzero({a}) | torch.argwhere({a})
torch.isin({i}, put([0, 2], 7)) | {f1}.nanquantile(0.5, {d}) | torch.cartesian_prod({r1}.flatten()[:3], put([1, 2], 2))
{spread}.nanmedian({d}).values | {f1}.topk(1, {d}) | torch.cummax({r1}, {d}).indices | torch.unique({r1}, return_inverse=True, return_counts=True) | torch.unique({r1}, dim={d}) | torch.unique_consecutive({r1}, return_counts=True) | torch.bincount({i}.flatten().abs(), minlength=6) | torch.bucketize({r}, put([-1, 0, 1], 4), right=True) | torch.unravel_index({i}.abs() % 6, (2, 3))
"""

PRODUCTS = """
torch.einsum('...ij,...kj->...ik', {z2}, {same}) | torch.einsum('...i,...i->...', {z1}, {same}) | torch.einsum('...ij->...ji', {z2})
torch.einsum('...ii->...i', {sq}) | {sq} @ {same} | {z2} @ {same}.mT | {z2}.mT @ {same} | torch.kron({z}.contiguous().clone(), {z}.contiguous().clone()) | torch.outer({z1}.flatten()[:4], {z1}.flatten()[:3])
torch.tensordot({z2}, {same}, dims=2) | torch.inner({f1}, {same}) | torch.linalg.matrix_power({sq}, 2) | torch.linalg.multi_dot([{sq}, {sq}])
torch.cross({f1}, {same}, dim={d}) | torch.addr({sq}, {z1}, {z1}) | torch.dot({f1}.flatten(), {same}.flatten()) | torch.chain_matmul({sq}, {sq})
torch.linalg.vecdot({z1}, {same}, dim={d}) | torch.linalg.multi_dot([{sq}, {sq}, {sq}]) | F.bilinear({f1}, {same}, fresh((2, {first}.shape[-1], {first}.shape[-1]), 'float64', {sd}, {code}).to({first}.dtype)) | torch.tensordot({z2}, {same}, dims=([0, 1], [0, 1])) | torch.einsum('...ij,...ij->...j', {z2}, {same}) | torch.einsum('ii', {sq}) | torch.vdot({z1}.flatten(), {same}.flatten())
"""

LINEAR_ALGEBRA = """
torch.linalg.det({sq}) | torch.linalg.slogdet({sq}) | torch.linalg.inv({sq} + 4 * torch.eye({n_}, dtype=torch.float64)) | torch.linalg.solve({sq}, {same})
torch.linalg.inv({sq}) | torch.linalg.svdvals({z2}) | torch.matrix_exp({sq} * 0.25) | torch.linalg.pinv({f2}) | torch.linalg.matrix_rank({z2}.detach())
(lambda q, r: q @ r)(*torch.linalg.qr({z2})) | torch.linalg.cholesky({sq} @ {first}.mH + 2 * torch.eye({n_}, dtype=torch.float64))
torch.linalg.eigvalsh({sq} + {first}.mH) | torch.linalg.lu_factor({sq}) | torch.linalg.cond({sq}) | torch.linalg.solve_triangular({sq}.triu() + 3, {same}, upper=True)
torch.cholesky_inverse({sq}.tril() + 2 * torch.eye({n_}, dtype=torch.float64)) | torch.trace({f2}) | torch.logdet({sq} @ {first}.mT + 1)
torch.linalg.vander({f1}) | torch.linalg.householder_product({f2}, {f1})
torch.linalg.cholesky_ex({sq} @ {first}.mH + 2 * torch.eye({n_}, dtype=torch.float64)) | torch.linalg.inv_ex({sq} + 4 * torch.eye({n_}, dtype=torch.float64)) | torch.linalg.lu({sq}) | torch.cholesky_solve({sq}, {sq}.tril() + 2 * torch.eye({n_}, dtype=torch.float64)) | torch.linalg.solve_triangular({sq}.tril() + 3, {same}, upper=False, left=False) | torch.linalg.solve_ex({sq} + 4 * torch.eye({n_}, dtype=torch.float64), {same}) | torch.linalg.diagonal({a2})
"""

VIEWS = """
{a2}.transpose({d}, {e}) | {a}.permute({perm}) | {a}.reshape({rs}) | {a}.view({rs}) | {a}.flatten() | {a2}.flatten({d}, -1) | {a}.ravel()
{a1}.unflatten({d}, ({s}, -1)) | {a}.expand({ex}) | {a}.squeeze() | {a1}.squeeze({d}) | {a}.unsqueeze({u}) | {a2}.diagonal(0, {d}, {e}) | {a2}.diagonal({off})
{a1}.unfold({d}, {s}, {st}) | {a1}.narrow({d}, {s}, {s}) | {a1}.chunk({st}, {d}) | {a1}.split({st}, {d}) | {a1}.tensor_split({st}, {d}) | {a2}.movedim({d}, {e})
{a2}.mT | {a2}.T | {a2}.t() | {a1}.select({d}, {s}) | {a1}.unbind({d}) | {a}[{sub}] | {a}[{sub}] | {a}[{sub}] | {a}.view(-1) | {a}.expand_as({first})
torch.atleast_2d({a}) | {a}.swapaxes({d}, {e}) | {a}.view_as({first}) | torch.split({a1}, [1, {s}], {d}) | {a}.squeeze({ds}) | {a}.broadcast_to({ex})
{filled}.as_strided(({s}, 2), (1, {s})) | {filled}.as_strided(({s},), ({st},), {s}) | {a}.reshape({rs}).transpose(0, -1) | {z}.view(torch.int64) | {a}.alias_ if 0 else {a}.view({first}.shape)
torch.hsplit({a1}, {st}) | torch.vsplit({a2}, {st}) | torch.select({a1}, {d}, -1) | {a}.repeat_interleave(2, {d}) | {a}.repeat({reps}) | {a}.tile({reps})
torch.diagonal_copy({a2}) | torch.narrow_copy({a1}, {d}, 0, {s}) | torch.unbind_copy({a1}, {d}) | torch.transpose_copy({a2}, {d}, {e}) | {a2}.movedim((0, 1), (-1, 0)) | {a2}.adjoint() | torch.atleast_3d({a}) | {a3}.dsplit({st}) | {a1}.tensor_split([1, {s}], {d}) | {f}.view(torch.int32) | {f}.view(torch.uint8) | {a}[True] | {a}[False] | {a}[None, ..., None]
"""

MOVES = """
move({a}, {code}) | move({a}, {code}) | move({a}, {code}) | gather({a})
"""

JOINS = """
torch.cat([{a1}, {same}], {d}) | torch.cat([{a1}, {same}, {first}], {d}) | torch.stack([{a}, {same}], {u}) | torch.hstack([{a1}, {same}]) | torch.vstack([{a1}, {same}])
torch.roll({a1}, {st}, {d}) | torch.roll({a}, {off}) | {a1}.flip({d}) | {a}.flip({ds}) | torch.rot90({a2}, {off}, ({d}, {e})) | torch.fliplr({a2})
F.pad({n1}, ({off}, {st})) | F.pad({n1}, (1, 2), value={x}) | F.pad({f2}, (1, 0, 0, 2)) | F.pad({f3}, ({st}, 1), mode='reflect') | F.pad({f3}, ({st}, 1), mode='replicate')
F.pad({f3}, ({st}, 1), mode='circular') | F.pad({f4}, (1, 1, 0, 1), mode='reflect') | F.pad({f4}, (1, 0, 1, 1), mode='circular') | torch.tril({a2}, {off}) | torch.triu({a2}, {off})
torch.diag({a1}) | torch.diag_embed({a1}, {off}) | torch.diagflat({a}) | torch.block_diag({f2}, {first}) | torch.meshgrid({a1}.flatten()[:3], put([1, 2], 3), indexing='ij')
torch.constant_pad_nd({n1}, (-1, 1), {x}) | torch.combinations({n1}.flatten()[:4]) | torch.column_stack([{a1}, {same}]) | torch.vander({f1}.flatten()[:3], 3) | torch.broadcast_tensors({a}, {o})
torch.tril_indices({s}, {s}) | torch.cov({f2}) | torch.corrcoef({f2})
torch.dstack([{a}, {same}]) | torch.cat([{a1}, {same}[:0], {first}], {d}) | torch.flipud({a1}) | {a1}.repeat_interleave(put([{s}] * {first}.shape[{d}], {code}), {d}) | torch.roll({a2}, (1, {st}), (0, 1)) | F.pad({n2}, (-1, 0, 1, -1)) | F.pixel_shuffle({f4}, 2) | torch.cov({f2}, correction=0)
"""

SELECTIONS = """
torch.index_select({a1}, {d}, {li}) | torch.index_select({a1}, {d}, {dup}) | {a1}.gather({d}, {ga}) | torch.take({a}, {tk}) | torch.take_along_dim({a1}, {ga}, {d})
{n1}.index_add({d}, {dup}, {ia}) | {a1}.index_copy({d}, {li}, {ic}) | {n1}.index_fill({d}, {dup}, {x}) | {n1}.scatter({d}, {su}, {sv}) | {n1}.scatter({d}, {su}, 3)
{n1}.scatter_add({d}, {ga}, {gv}) | {f1}.scatter_reduce({d}, {ga}, {gv}, 'amax') | {f1}.scatter_reduce({d}, {ga}, {gv}, 'mean', include_self=False) | {f1}.scatter_reduce({d}, {ga}, {gv}, 'prod')
{n}.masked_fill({mask}, {x}) | {a}.masked_select({mask}) | {a}[{mask}] | {n}.masked_scatter({mask}, {same}.clone()) | {n1}.contiguous().select_scatter({sel}, {d}, {s}) | {n2}.contiguous().diagonal_scatter({dg})
{n1}.contiguous().slice_scatter({same}[..., :2], -1, 0, 2) | {a1}[{dup0}] | {a2}[:, {dup1}] | {a2}[{dup0}, {dup1b}] | {n1}.index_put(({dup0},), {ip}, accumulate=True) | {a2}[{dup0}, ..., None]
{n1}.index_put(({li0},), {ipu}) | F.embedding({ids}, {emb}) | F.one_hot({ids}, 6) | F.embedding({ids}, {emb}, padding_idx=1) | F.embedding_bag({ids2}, {emb}, mode='mean')
{n1}.index_reduce({d}, {dup}, {ia}, 'amax') | {rows} | {rows} | {rows} | torch.where({b}) | {a}[{b}] | {a}[{b0}]
{a2}[:, None, {dup1}] | {a2}[{b0}, 0] | {n1}.index_add({d}, {dup}, {ia}, alpha=2) | {f1}.scatter_reduce({d}, {ga}, {gv}, 'sum', include_self=False) | {f1}.scatter_reduce({d}, {ga}, {gv}, 'amin') | {n}.put({tku}, {x1}) | {n}.put({tk}, {x1}, accumulate=True) | torch.take_along_dim({a}, {tk}) | {f1}.index_reduce({d}, {dup}, {ia}, 'prod') | {f1}.index_reduce({d}, {dup}, {ia}, 'mean', include_self=False)
F.embedding_bag({ids2}, {emb}, mode='sum') | F.embedding_bag({ids2}, {emb}, mode='max') | F.one_hot({ids}) | torch.nonzero_static({a}, size=3) | torch.nonzero({a}, as_tuple=True) | torch._foreach_norm([{f}, {same}]) | torch._foreach_lerp([{f}], [{same}], 0.25) | torch._foreach_addcmul([{f}], [{same}], [{same}], 2.0) | torch._foreach_sub([{n}], [{same}], alpha=2) | torch._foreach_max([{f}, {same}]) | torch._foreach_div([{f}, {same}], [2.0, 4.0])
"""

RANDOM = """
(torch.manual_seed({sd}), torch.rand_like({f}))[1] | (torch.manual_seed({sd}), torch.randn_like({z}))[1] | (torch.manual_seed({sd}), F.dropout({f}, 0.5))[1]
(torch.manual_seed({sd}), torch.bernoulli({f}.detach().sigmoid()))[1] | (torch.manual_seed({sd}), torch.randint_like({r}, 5))[1] | (torch.manual_seed({sd}), torch.normal({f}.detach(), 1.0))[1]
(torch.manual_seed({sd}), {a1}[torch.randperm(2)])[1] | (torch.manual_seed({sd}), torch.multinomial({f1}.detach().abs() + 1, 1))[1] | (torch.manual_seed({sd}), F.alpha_dropout({f}, 0.3))[1]
(torch.manual_seed({sd}), F.feature_dropout if 0 else F.dropout2d({f4}, 0.4))[1] | (torch.manual_seed({sd}), F.gumbel_softmax({f1}, dim={d}))[1] | (torch.manual_seed({sd}), torch.poisson({f}.detach().abs()))[1]
"""

LAYERS = """
F.layer_norm({f1}, {first}.shape[-1:]) | F.layer_norm({f2}, {first}.shape[-2:]) | F.rms_norm({f1}, {first}.shape[-1:]) | F.mse_loss({f}, {same}) | F.mse_loss({f}, {same}, reduction='none')
F.l1_loss({f}, {same}, reduction='sum') | F.smooth_l1_loss({f}, {same}) | F.huber_loss({f}, {same}) | F.binary_cross_entropy_with_logits({f}, {same}.sigmoid()) | F.binary_cross_entropy({f}.sigmoid(), {same}.sigmoid().detach())
F.kl_div({f1}, {same}, reduction='batchmean') | F.glu({f1}, {d}) | F.avg_pool1d({f3}, 2, 1) | F.max_pool1d({f3}.clone(memory_format=torch.contiguous_format), 2, 1, 1) | F.max_pool1d({f3}, 2, 1, 1, return_indices=True) | F.max_pool2d({f4}, 2, 1) | F.avg_pool2d({f4}, 2, 1, 1) | F.adaptive_avg_pool2d({f4}, (2, 1)) | F.adaptive_max_pool1d({f3}, 2)
F.instance_norm({f3}) | F.interpolate({f3}, scale_factor=2) | F.interpolate({f4}, size=(3, 2), mode='bilinear') | F.pixel_shuffle({f4}, 1) | F.unfold({f4}, 2) | F.local_response_norm({f3}, 2) | F.lp_pool1d({f3}, 2, 2)
F.cross_entropy({f2}.flatten(1), {lab}) | F.nll_loss({f2}.flatten(1), {lab}, reduction='none') | F.cross_entropy({f2}.flatten(1), {lab}, label_smoothing=0.1) | F.cross_entropy({f2}.flatten(1), {lab}, ignore_index=0, reduction='sum') | F.prelu({f2}, {pre})
F.channel_shuffle({f4}, 1) | F.multi_margin_loss({some2}.flatten(1), {lab}) | F.gaussian_nll_loss({f}, {same}, {same}.abs() + 1) | F.poisson_nll_loss({f}, {same}.abs()) | F.pdist({some2}.flatten(1)) | F.fold(F.unfold({f4}, 2), {first}.shape[2:], 2)
F.grid_sample({f4}, fresh((1, 2, 2, 2), 'float64', {sd}, {code}).expand({first}.shape[0], 2, 2, 2), align_corners=False) | F.pixel_unshuffle({f4}, 2) | F.adaptive_max_pool2d({f4}, 2) | F.multilabel_soft_margin_loss({f2}, {same}.sigmoid().detach())
| F.hinge_embedding_loss({f}, {same}.sign()) | F.soft_margin_loss({f}, {same}.sign()) | F.cosine_embedding_loss({f2}.flatten(1), {same}.flatten(1), put(1, 5)) | F.triplet_margin_loss({f2}, {same}, {same})
F.conv_transpose2d({f4}, fresh(({first}.shape[1], 2, 2, 2), 'float64', {sd}, {code}).to({first}.dtype)) | F.avg_pool1d({f3}, 3, 2, 1, count_include_pad=False) | F.adaptive_avg_pool1d({f3}, 2) | F.interpolate({f3}, size=4, mode='linear') | F.interpolate({f4}, size=(3, 3), mode='bicubic', align_corners=True) | F.interpolate({f4}, scale_factor=2, mode='nearest-exact') | F.cross_entropy({f2}.flatten(1), {same}.flatten(1).softmax(1))
F.cross_entropy({f2}.flatten(1), {lab}, reduction='none') | F.kl_div({f}, {same}, log_target=True, reduction='none') | F.margin_ranking_loss({f}, {same}, {same}.sign()) | F.affine_grid(fresh((2, 2, 3), 'float64', {sd}, {code}), (2, 1, 2, 3)) | F.unfold({f4}, 2, padding=1, stride=2) | F.dropout({f}, 0.5, training=False) | F.huber_loss({f}, {same}, delta=0.5, reduction='sum') | F.max_pool3d({f4}[None], 1) | F.avg_pool3d({f4}[None], 1, 2)
"""

WRITES = """
{w}.add_({o}) | {w}.mul_({x}) | {w}.sub_({o}) | {w}.copy_({o}) | {w}.fill_({x}) | {w}.zero_() | {w}.clamp_(-1, 1) | {w}.neg_() | {w}[{sub}] = {x} | {w}[{sub}] = {o0}
{w}[{mask}] = {x} | {w}.masked_fill_({mask}, {x}) | {w}.relu_() | {w}.div_(2) | {w}.addcmul_({same}, {same}) | {w}.transpose_(0, -1) | {w}.squeeze_() | {w}.unsqueeze_({u}) | {w}.t_()
torch.add({w}, {o}, out={first}) | torch.mul({w}, 2, out={first}) | torch.exp({w} * 0, out={first}) | torch._foreach_add_([{w}, {same}.clone()], 1.5) | torch._foreach_mul_([{w}], [{x}])
torch._foreach_copy_([{w}], [{same}]) | torch._foreach_zero_([{w}]) | {w}.index_add_({d}, {dup}, {ia}) | {w}.index_fill_({d}, {li}, {x}) | {w}.index_copy_({d}, {li}, {ic}) | {w}.scatter_({d}, {su}, {sv}) | {w}.scatter_add_({d}, {ga}, {gv})
{w}.index_put_(({dup0},), {ip}, accumulate=True) | {w}[{li0}] = {ipu} | {w}[{li0}] += 1 | {w}.fill_diagonal_({x}) | {w}.tril_({off}) | {w}.triu_() | {w}.cumsum_({d}) | {w}.lerp_({same}, 0.5) | {w}.diagonal().add_(1) | {w}.T.mul_(2)
{w}.flatten().add_(1) | {w}.view(-1)[:2] = {x} | {w}.detach().add_({x}) | torch.no_grad()({a}.mul_)(0.5) | {w}[{sub}].mul_(2) | {w}[{sub}] += {o0} | {w}.copy_({first}.flip(0)) | {w}.masked_fill_({mask}, {o0})
{w}.cumprod_({d}) | {w}.scatter_reduce_({d}, {ga}, {gv}, 'amin') | {w}.clamp_min_(0) | torch.cumsum({w}, {d}, out={first}) | {w}.index_reduce_({d}, {dup}, {ia}, 'amin') | {w}.permute({perm}).sub_(1)
{w}.reshape({rs}).add_({x}) | {w}[..., 0].add_({x}) | {w}.mT.copy_({same}.mT) | {w}.unsqueeze(0).mul_(2) | {w}.exp_() | {w}.sigmoid_() | {w}.sqrt_() | {w}.pow_(2) | {w}.floor_() | {w}.masked_scatter_({mask}, {same}.clone())
torch.manual_seed(3); {w}.normal_() | torch.manual_seed(4); {w}.uniform_() | torch.manual_seed(5); {w}.bernoulli_(0.5) | {w}.put_({tku}, {x1}) | {w}.logical_not_() | {w}.eq_({o}) | {w}.gt_(0)
torch.matmul({w}.double(), {same}.mT.double(), out={first}.double().new_empty(0)) | torch.cat([{w}[:1], {first}[1:]], out={first}.clone()) | {w}.sub_({first}.mean()) | {w}.div_({first}.abs().amax() + 1) | {w}.swapaxes_(0, -1) | {w}.addmm_({same}.clone(), {same}.clone()) | {w}.baddbmm_({same}.clone(), {same}.clone()) | {w}.requires_grad_(False)
{w}.addcdiv_({same}, {same}.abs() + 1) | {w}.abs_() | {w}.sign_() | {w}.fmod_(2) | {w}.remainder_(3) | {w}.copysign_({o}) | {w}.nan_to_num_() | {w}.renorm_(2, {d}, 1.0) | {w}.put_({tk}, {x1}, accumulate=True) | {w}.scatter_({d}, {su}, {x}) | {w}.real.mul_(2) | {w}.imag.zero_() | {w}.select({d}, -1).fill_({x}) | {w}.narrow({d}, 0, 1).add_(1) | {w}.diagonal(-1).zero_() | {w}.view(-1)[::2].neg_()
{w}.squeeze().mul_(2) | {w}.movedim(0, -1).add_(1) | {w}.chunk(2, {d})[0].zero_() | {w}.split(1, {d})[-1].mul_(3) | {w}.unbind({d})[0].copy_({o0}) | torch.sub({w}, {o}, out={first}) | torch.maximum({w}, {same}, out={first}) | torch.clamp({w}, -1, 1, out={first}) | torch.index_select({w}, {d}, {li}, out={first}.new_empty(0)) | torch._foreach_lerp_([{w}], [{same}], 0.5) | torch._foreach_addcmul_([{w}], [{same}], [{same}], 0.5) | torch._foreach_neg_([{w}])
"""

FUNCTIONS = """
torch.vmap(torch.sum)({n1}) | torch.vmap(lambda t: t.cumsum(0))({n2}) | torch.vmap(torch.mul, (0, None))({z1}, {o0}) | (lambda t, dim: torch.vmap(torch.sin, dim, dim)(t))({z1}, {d}) | torch.vmap(lambda t: t @ t.mT)({z3})
torch.func.grad(lambda t: (t.sin() * t).sum())({f}.detach()) | torch.func.jacrev(lambda t: torch.tanh(t) * t.sum())({f1}.detach().flatten()[:4]) | torch.func.jvp(torch.sin, ({f}.detach(),), ({same}.detach(),))
torch.func.vjp(lambda t: t.cumsum(0), {f1}.detach())[1]({same}.detach()) | torch.vmap(torch.func.grad(lambda t: t.pow(3).sum()))({f1}.detach()) | torch.vmap(lambda t: F.softmax(t, -1))({f2}) | torch.func.jacfwd(lambda t: t * t.sum())({f1}.detach().flatten()[:3])
torch.func.hessian(lambda t: (t ** 3).sum() * t.sum())({f1}.detach().flatten()[:3]) | torch.vmap(lambda t, s: t * s.sum(), (0, None))({f1}, {f}) | torch.vmap(lambda t: torch.where(t > 0, t, -t))({f1}) | torch.vmap(lambda t: t.sort(0).values)({f2}) | torch.vmap(torch.dot)({f2}.flatten(1), {same}.flatten(1)) | torch.func.linearize(lambda t: t.sin() * 2, {f}.detach())[1]({same}.detach()) | torch.vmap(lambda t: torch.cat([t, t]))({a2}) | torch.vmap(lambda t: F.layer_norm(t, t.shape[-1:]))({f2}) | torch.vmap(lambda t: t.flip(0).cumsum(0), 0, -1)({f2})
"""

QUESTIONS = """
{a}.tolist() | {f}.double().sum().item() | {a}.shape | strides({a}) | {a}.is_contiguous() | torch.equal({a}, {same}) | torch.allclose({f}, {same}) | {a}.numel() | {a}.size(0) | len({a}) | bool(({a} == {first}).all())
{a}.is_floating_point() | {a}.storage_offset() | {a}.dim() | {a}.is_conj() | {a}.element_size() | {a}.requires_grad
2 in {r} | [row.sum() for row in {n1}] | float({f}.flatten()[:1].sum()) | torch.result_type({a}, 2.5) | {a}.nbytes | {a}.mT.is_contiguous() | bool({a}.any()) | {a}.dtype
"""

TABLES: dict[str, tuple[str, float]] = {
    "elementwise": (ELEMENTWISE, 4),
    "casts": (CASTS, 1),
    "complex": (COMPLEX, 1),
    "reductions": (REDUCTIONS, 2.5),
    "scans": (SCANS, 1.5),
    "products": (PRODUCTS, 1),
    "linear algebra": (LINEAR_ALGEBRA, 0.7),
    "views": (VIEWS, 5),
    "moves": (MOVES, 1),
    "joins": (JOINS, 1.5),
    "selections": (SELECTIONS, 2.5),
    "random": (RANDOM, 0.6),
    "layers": (LAYERS, 1.2),
    "writes": (WRITES, 4),
    "functions": (FUNCTIONS, 0.4),
    "questions": (QUESTIONS, 0.4),
}


def statements(table: str) -> list[str]:
    """The statements of a table, which ` | ` separates."""
    return [text.strip() for line in table.strip().splitlines() for text in line.split(" | ")]
