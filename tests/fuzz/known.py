"""Shortest programs that once went wrong, each with what was wrong about it."""

from __future__ import annotations

from .program import Program

KNOWN: dict[str, Program] = {
    "views did not see what was written by a list to windows of what they show, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((6, 4), 'float64', 13, 14)",
            "v1 = v0.view(8, 3)",
            "torch._foreach_abs_([v0.unfold(0, 4, 1)])",
            "v2 = v1 + 1",
        ),
        order=0,
    ),
    "what inference mode had cut out could not be read outside after a write, and views of it were of another kind": Program(
        {"x": 2},
        (
            "v0 = fresh((6, 4), 'float64', 13, 14)",
            "with torch.inference_mode(): v1 = v0 * 2",
            "with torch.inference_mode(): v2 = v1[1:4]",
            "v3 = v1[2:5]",
            "v4 = v1[:, 1:][2:5]",
            "v0.add_(1)",
            "v5 = v2 + v3",
            "with torch.inference_mode(): v1.add_(1)",
            "v6 = v2 + v3",
            "v7 = v4 + 1",
            "with torch.inference_mode(): v3.add_(1)",
            "v8 = v4.is_inference() + v1.t().is_inference() + v1.reshape(24).is_inference()",
            "v1.detach().mul_(2)",
            "v3.mul_(2)",
        ),
        order=0,
    ),
    "a column was not written to others where each device has one row, memories apart": Program(
        {"x": 4},
        (
            "v0 = fresh((4, 5), 'float64', 13, 14)",
            "v0[:, [0, 3]] = v0[:, 2:3]",
            "v0.index_copy_(1, torch.tensor([4]), v0[:, 1:2])",
            "v1 = fresh((4, 5), 'float64', 17, 14).t()",
            "v1[torch.tensor([True, False, False, True, False])] = v1[2]",
            "v1.index_add_(0, torch.tensor([0]), v1[2:3])",
            "v1.index_add_(0, torch.tensor([0]), v1[2:3])",
        ),
        order=0,
    ),
    "a mask beside an index did not fit to what stood in for both": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 2, 1, 2), 'int64', 13, 137)",
            "v1 = v0[torch.tensor([-1, 0]), :, :, torch.tensor([True, True])]",
            "v2 = v0[put([-1, 0], 582), ::3, :, put([True, True], 867)]",
        ),
    ),
    "views of a tensor that was given the memory of another did not see what was written to that": Program(
        {"x": 2},
        (
            "v0 = fresh((6, 4), 'float64', 13, 14)",
            "v1 = fresh((24,), 'float64', 17, 14)",
            "v0.data = v1.view(6, 4)",
            "v2 = v0[1:4]",
            "v3 = v1[2:9]",
            "v1.add_(1)",
            "v4 = v2 + 1",
            "v0.mul_(2)",
            "v5 = v3 + 1",
            "v6 = fresh((6,), 'float64', 19, 14)",
            "v7 = fresh((6,), 'float64', 23, 14)",
            "v6.set_(v7)",
            "v8 = v6[1:5]",
            "v6.set_(v6)",
            "v7.add_(1)",
            "v9 = v8 + 1",
        ),
        order=0,
    ),
    "a part of no elements lay beyond a memory of none": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 0), 'float64', 13, 14)[2:].as_strided((0, 3), (3, 1), 3)",
            "v1 = torch.as_strided_scatter(v0, v0 + 1, (0, 3), (3, 1))",
        ),
    ),
    "a tensor that was cut short by another name had memory of its own, and lost what lay beyond": Program(
        {"x": 2},
        (
            "v0 = fresh((6, 4), 'float64', 13, 137)",
            "v1 = v0.detach()",
            "v1.resize_(2).fill_(7)",
            "v2 = v0 + 1",
            "v0.mul_(2)",
            "v3 = v1 + 1",
            "v1.resize_(3, 4).add_(1)",
            "v4 = v0 + 1",
            "v5 = v1.as_strided((4, 4), (1, 4))",
            "v6 = fresh((6,), 'float64', 13, 137).resize_(2).resize_(6)",
        ),
    ),
    "what was turned in inference mode was a tensor of inference from then on": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 2), 'float64', 13, 137)",
            "with torch.inference_mode(): v0.t_()",
            "with torch.inference_mode(): v0.resize_(5).add_(1)",
            "v1 = fresh((5,), 'float64', 3, 582, grad=True) * v0",
            "v0.add_(1)",
        ),
    ),
    "elements that are one were not copied to themselves": Program(
        {"x": 2},
        ("v0 = fresh((1, 4), 'float64', 773, 137)", "v1 = v0.expand(4, 4)", "v1[1:].copy_(v1[:3])", "v2 = v1 + 1"),
    ),
    "an out of one row shared its elements in other words": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 2), 'float64', 21, 68)",
            "torch.sort(v0.transpose(0, -1), out=(v0[...], put([0], 63)))",
            "v1 = fresh((2, 1, 1), 'float32', 48, 68)",
            "torch.sort(v1[::2], out=(v1, put([0], 862)))",
            "v2 = fresh((1, 0), 'float32', 969, 68)",
            "torch.stack([v2, v2], out=v2)",
        ),
    ),
    "a part of the memory of a view was written to as if it had no gaps, and began at 0": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 4), 'float64', 13, 137)",
            "v1 = torch.as_strided_scatter(v0[1:], fresh((2, 2), 'float64', 3, 582), (2, 2), (4, 1), 0)",
            "v2 = torch.as_strided_scatter(v0[:, ::2], fresh((2, 2), 'float64', 3, 582), (2, 2), (4, 2), 0)",
            "v3 = torch.as_strided_scatter(v0, fresh((2, 2), 'float64', 3, 582), (2, 2), (4, 1), 10)",
        ),
    ),
    "a view of elements that are one could not be turned in place": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 4), 'float64', 13, 137)",
            "v1 = v0.as_strided((4, 3), (1, 1))",
            "v1.t_()",
            "v2 = v1 + 1",
            "v3 = v0.unfold(1, 2, 1)",
            "v3.transpose_(0, 1)",
            "v0.add_(1)",
            "v4 = v3 * 2",
        ),
    ),
    "views did not see what was written to a tensor that out= had cut short, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((5, 4), 'float64', 13, 137)",
            "v1 = v0.t()",
            "torch.add(fresh((2,), 'float64', 3, 582), 1, out=v0)",
            "v2 = fresh((5, 4), 'float64', 13, 137)",
            "v3 = v2.t()",
            "v2.resize_(2)",
            "v2.fill_(7)",
            "v4 = v3 + 1",
        ),
    ),
    "what a tensor had become by out= did not see what was written to its views": Program(
        {"x": 3},
        (
            "v0 = fresh((6,), 'float64', 13, 867)",
            "v1 = v0.view(2, 3)",
            "torch.neg(fresh((2, 2), 'float64', 3, 821), out=v0)",
            "v1.mul_(2)",
            "v2 = v0 + 1",
        ),
    ),
    "the target of one sample had no dim": Program(
        {"x": 2},
        (
            "v0 = fresh((5,), 'float64', 13, 137)",
            "v1 = F.nll_loss(v0, put([3], 582))",
            "v2 = F.nll_loss(v0, put([3], 867), reduction='none', weight=v0.abs())",
            "v3 = F.nll_loss(v0.clone().requires_grad_(), put([3], 582))",
        ),
    ),
    "a mask was as long as its dim beside other indices": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 4), 'float64', 13, 137)",
            "v1 = v0[put([True, False, True], 582), put([0, 1], 867)[None]]",
            "v2 = v0[put([0, 1], 582)[None], put([True, False, True, False], 867)]",
            "v3 = v0[put([True, False, True], 582), put([0, 1, 2], 867)]",
        ),
    ),
    "a tensor was copied to itself in another shape": Program(
        {"x": 2}, ("v0 = fresh((3, 4), 'float64', 13, 137)", "v0.copy_(v0.unsqueeze(2))")
    ),
    "the product of a batch of one could not be written": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 2, 3), 'float64', 13, 137)",
            "v1 = torch.matmul(v0, fresh((3, 4), 'float64', 13, 867), out=fresh((1, 2, 4), 'float64', 13, 582))",
            "v2 = torch.matmul(v0, fresh((3,), 'float64', 13, 867), out=fresh((1, 2), 'float64', 13, 582))",
        ),
    ),
    "a row that is written to was not read by another name, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 2), 'float64', 13, 137)",
            "v0.sub_(v0.view_as(v0))",
            "v1 = fresh((1, 2), 'float64', 14, 137)",
            "torch._foreach_addcmul_([v1], [v1.view_as(v1)], [v1])",
            "torch._foreach_addcmul_([v1], [v1.view_as(v1)], [v1])",
            "v2 = fresh((1, 2, 2), 'float64', 773, 845)[..., ::2]",
            "v2.sub_(v2[-1], alpha=2)",
        ),
    ),
    "a part of a tensor could not be filled with an element of it": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((5,), 'float64', 13, 766)",
            "v0[1:] = v0[2]",
            "v1 = fresh((2, 3), 'int64', 13, 9)",
            "v1[:, :2] = v1[1, 1]",
            "v2 = fresh((3,), 'float64', 7, 68, grad=True) * 2",
            "v2[:2] = v2[1]",
        ),
    ),
    "one_hot of columns lay as they do": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 3), 'int64', 13, 9)",
            "v1 = F.one_hot(v0.abs().t() % 3)",
            "v2 = F.one_hot(v0.abs().t() % 3, 4)",
        ),
    ),
    "a real transform of two dims had other strides, memories apart": Program(
        {"x": 2},
        ("v0 = fresh((2, 3), 'float64', 793, 68)", "v1 = torch.fft.rfft2(v0)", "v2 = torch.fft.irfft2(v1)"),
    ),
    "a view of a resolved mean was resolved again, in one memory and with caches warm": Program(
        {"x": 2},
        (
            "v0 = fresh((2,), 'float64', 667, 766)",
            "v1 = torch.var_mean(v0, (0,), correction=0)",
            "v2 = torch.var_mean(v0, (0,), correction=0)",
            "v3 = torch.histc(v2[1], 4, -2, 2)",
        ),
    ),
    "a dim without elements could not be taken apart": Program(
        {"x": 2}, ("v0 = fresh((1, 1, 0), 'float64', 577, 68)", "v1 = v0.unbind(2)")
    ),
    "ones like a folded tensor moved its elements, in one memory": Program(
        {"x": 3},
        ("v0 = fresh((4, 1, 2), 'float64', 979, 261)", "v1 = v0.view(-1)", "v2 = torch.ones_like(v1)"),
    ),
    "a number could not be copied": Program(
        {"x": 2},
        ("v0 = fresh((3,), 'float64', 13, 766)", "v0.copy_(0.1)", "v2 = fresh((3,), 'int64', 13, 9)", "v2.copy_(2.5)"),
    ),
    "the imaginary parts of a pending product were multiplied": Program(
        {"a": 2, "b": 2, "c": 2},
        ("v0 = fresh((1, 1), 'complex128', 164, 109)", "v1 = v0.imag", "v2 = torch.view_as_real(v0)"),
    ),
    "batch norm with split statistics lay in another way, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 3), 'float64', 709, 127)",
            "v1 = F.batch_norm(v0, fresh((3,), 'float64', 101, 68), fresh((3,), 'float64', 85, 519).abs() + 1, None, None)",
        ),
    ),
    "a number of no dims could not be flipped": Program(
        {"x": 2}, ("v0 = fresh((), 'bool', 254, 68)", "v1 = v0.flip(0)", "v2 = fresh((), 'float64', 1, 9).flip(-1)")
    ),
    "a sum of exponentials along no dim was another error": Program(
        {"a": 2, "b": 2}, ("v0 = fresh((4,), 'float64', 83, 220)", "v1 = torch.logsumexp(v0, ())")
    ),
    "the largest of rows that are none was refused, memories apart": Program(
        {"x": 3}, ("v0 = fresh((0, 1), 'float64', 302, 68)", "v1 = torch.linalg.vector_norm(v0, inf, -1)")
    ),
    "a conjugate that was transposed in place no longer said that it is one": Program(
        {"x": 3}, ("v0 = fresh((2, 3), 'complex128', 663, 766)", "v1 = v0.conj()", "v1.t_()", "v1.mul_(2j)")
    ),
    "a convolution of images without columns was accepted, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 2, 2, 0), 'float64', 1, 68)",
            "v1 = F.conv2d(v0, fresh((1, 2, 1, 1), 'float64', 12, 68), padding=2)",
        ),
    ),
    "the conjugate of a resolved mean was resolved again, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 4, 1), 'complex128', 233, 68, grad=True)",
            "v1 = torch.select(v0, 2, -1)",
            "v2 = v1[:, put([3, 0], 863)]",
            "v3 = v2 @ fresh((1, 2), 'complex128', 205, 68).mT",
            "v4 = v3 * fresh((), 'complex128', 81, 529)",
        ),
    ),
    "the smallest of rows that are none lay in another way, memories apart": Program(
        {"a": 2, "b": 2}, ("v0 = fresh((0, 3, 1, 1), 'float64', 508, 551)", "v1 = v0.kthvalue(1, -3).values")
    ),
    "a spread with no freedom left was not a number where it is infinite": Program(
        {"x": 2}, ("v0 = fresh((1, 2), 'float64', 696, 766)", "v1 = torch.std(v0, 1, correction=2)")
    ),
    "a random op resolved what had been resolved, memories apart": Program(
        {"b": 2, "c": 2},
        (
            "v0 = fresh((1, 1), 'float64', 949, 68)",
            "v1 = v0 @ fresh((1, 1), 'float64', 415, 118).mT",
            "v2 = torch.square(v1)",
            "v3 = (torch.manual_seed(4), torch.normal(v1, 1.0))[1]",
        ),
    ),
    "draws of a transposed tensor had other strides, memories apart": Program(
        {"x": 2},
        ("v0 = fresh((3, 2), 'float64', 67, 68)", "v1 = (torch.manual_seed(0), torch.poisson(v0.mT.abs()))[1]"),
    ),
    "no elements before the memory of a view were refused": Program(
        {"x": 3}, ("v0 = fresh((1, 3), 'bool', 12, 68)", "v1 = v0.unbind(-1)", "v2 = v1[2].as_strided((0,), (2,), 1)")
    ),
    "the transpose of a merged conjugate no longer said that it is one": Program(
        {"a": 2, "b": 2},
        ("v0 = fresh((2, 5, 5), 'complex128', 967, 552)", "v1 = v0.conj()", "v2 = v1.reshape(10, 5).transpose(0, -1)"),
    ),
    "elements beyond a view were told to be read of the view, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 2), 'bool', 560, 643)",
            "v1 = v0.tensor_split(2, -1)",
            "v2 = v1[0].as_strided((2, 2), (1, 1))",
        ),
    ),
    "bits of one number as a longer one were another error": Program(
        {"x": 2}, ("v0 = fresh((), 'bfloat16', 47, 68)", "v1 = v0.view(torch.int64)")
    ),
    "a view that strides do not allow was accepted where it merges a split dim": Program(
        {"x": 3}, ("v0 = fresh((2, 2), 'float64', 885, 744)", "v1 = torch.sign(move(v0, 502).mT)", "v2 = v1.view(-1)")
    ),
    "a product with merged dims exchanged their elements twice, and needed none, memories apart": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((1, 3, 1, 2), 'float64', 454, 68)",
            "torch.matmul(v0, fresh((2, 3, 2, 2), 'float64', 436, 418).mT, out=v0.new_empty(0))",
        ),
    ),
    "the gradient of the mean loss of nothing divided by zero, memories apart": Program(
        {"c": 2},
        (
            "v0 = fresh((0, 2), 'float64', 303, 68, grad=True)",
            "v1 = F.huber_loss(v0, fresh((0, 2), 'float64', 757, 68))",
            "v2 = F.mse_loss(v0, fresh((0, 2), 'float64', 757, 68))",
            "v3 = F.smooth_l1_loss(v0, fresh((0, 2), 'float64', 757, 68))",
        ),
    ),
    "the conjugate of a view with gaps had none, in one memory": Program(
        {"b": 2},
        (
            "v0 = fresh((2, 2), 'complex128', 591, 68)",
            "v1 = v0.diagonal().conj()",
            "v0.add_(1)",
            "v1.mul_(2)",
            "v4 = v1 + 1j",
        ),
    ),
    "a convolution of no channels could not add its bias": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 0, 5), 'float64', 458, 68)",
            "v1 = F.conv1d(v0, fresh((2, 0, 1), 'float64', 240, 149), fresh((2,), 'float64', 422, 68), padding=2)",
        ),
    ),
    "angles of transposed numbers had other strides, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((2, 3), 'complex128', 276, 68)",
            "v1 = v0.T.angle()",
            "v2 = fresh((2, 3), 'float64', 276, 68)",
            "v3 = v2.T.angle()",
        ),
    ),
    "what a list op writes back to a copied view was told twice, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 1), 'float64', 774, 615)",
            "v1 = v0.diagonal(0)",
            "torch._foreach_add_([v1, fresh((1,), 'float64', 226, 68).clone()], 1.5)",
        ),
    ),
    "the spread of one element was infinite where its mean was rounded": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((1, 3), 'float64', 543, 833)",
            "v1 = F.cosine_similarity(v0, v0 + 0.375, dim=-1)",
            "v2 = torch.std(v1, (), correction=2)",
        ),
    ),
    "a plain input next to split statistics was a failed assertion": Program(
        {"c": 2},
        (
            "v0 = fresh((1,), 'float64', 581, 68)",
            "v1 = torch.vander(v0, 3)",
            "v2 = F.batch_norm(v1, fresh((3,), 'float64', 34, 68), fresh((3,), 'float64', 918, 68).abs() + 1)",
        ),
    ),
    "a list op wrote to rows that had been sent, and not to those that stay, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 1, 1), 'float64', 888, 824)",
            "v1 = v0[put([-1, -1], 646)]",
            "torch._foreach_mul_([v1], [1.5])",
        ),
    ),
    "a mask of itself could not be written to": Program(
        {"a": 2, "b": 2}, ("v0 = fresh((2, 2, 1), 'bool', 200, 979)", "v0[v0] = -0.5")
    ),
    "triangles of looked-up rows were those of each device's rows, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((5, 6), 'float64', 1, 9)",
            "v1 = v0[put([0, 3, 3, 1, 4], 349)]",
            "v2 = v1.tril()",
            "v3 = v1.triu(1)",
        ),
    ),
    "an index of looked-up rows counted those of each device, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 1, 1), 'float64', 827, 68)",
            "v1 = v0[put([1, 1, 1], 349)]",
            "v2 = v1[put([0, 2, 2], 269)]",
            "v2[put([1, 2], 495)] += 1",
            "v3 = v2.scatter_reduce(0, put([[[2]]], 857), fresh((1, 1, 1), 'float64', 843, 68), 'prod')",
        ),
    ),
    "looked-up rows could not be written to after a view that nobody holds": Program(
        {"x": 3},
        (
            "v0 = fresh((2,), 'float64', 565, 357)",
            "v1 = torch.index_select(v0, 0, put([1], 611))",
            "v1.T.mul_(2)",
            "v2 = torch.trapezoid(v1, dim=0)",
            "v1.sqrt_()",
        ),
    ),
    "a device without heads ended the process, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((3, 2, 2, 3), 'float64', 732, 161, grad=True)",
            "v1 = fresh((3, 1, 2, 3), 'float64', 125, 170, grad=True)",
            "v2 = F.scaled_dot_product_attention(v0, v1, fresh((3, 1, 2, 3), 'float64', 564, 872), enable_gqa=True)",
        ),
    ),
    "what is permuted could not be rolled, memories apart": Program(
        {"b": 2, "c": 2},
        ("v0 = fresh((1, 1, 2, 4), 'float64', 247, 220)", "v1 = torch.roll(v0.permute(1, 3, 2, 0), 1)"),
    ),
    "what is among some numbers had other strides, memories apart": Program(
        {"x": 3},
        ("v0 = torch.nonzero(fresh((1, 2, 2), 'bool', 125, 68))", "v1 = torch.isin(v0, put([0, 2], 7))"),
    ),
    "what was written to views of looked-up rows was lost, memories apart": Program(
        {"b": 2},
        (
            "v0 = fresh((2, 2), 'int64', 52, 156)",
            "v1 = v0[put([-2, 1], 879)]",
            "v1[:, ::2] = 3",
            "v1.view(-1)[:2] = 1.5",
        ),
    ),
    "looked-up rows that were sent were written to where they had been, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((3,), 'float64', 284, 632)",
            "v1 = torch.index_select(v0, 0, put([2, 1, 2, 0], 708))",
            "v2 = torch.vander(v1.flatten()[:3], 3)",
            "v1.pow_(2)",
            "v3 = torch.hsplit(v1, 2)",
        ),
    ),
    "random numbers like looked-up rows had these sent, in one memory": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((3,), 'float64', 976, 978)",
            "v1 = torch.index_select(v0, 0, put([1, 0, 0, 0], 597))",
            "v2 = (torch.manual_seed(0), torch.randint_like(v1, 5))[1]",
        ),
    ),
    "the conjugate of looked-up rows was taken for the rows, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((2, 2), 'complex128', 601, 156)",
            "v1 = v0[put([-1, 1, -2, -2, 1], 784)]",
            "v2 = v1.conj() * 2",
            "v3 = v1.mT.conj().imag",
        ),
    ),
    "a view of looked-up rows that was written to was repeated by what it had become, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((2, 1), 'complex128', 601, 156)",
            "v1 = v0[put([-1, 1, -2, -2, 1], 784)]",
            "v2 = move(v1, 968)",
            "v1.unsqueeze(0).mul_(2)",
        ),
    ),
    "a random op was not given what the op before had been brought, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((3, 5), 'float64', 460, 824)",
            "v1 = v0.median()",
            "v2 = (torch.manual_seed(1), torch.normal(v0, 1.0))[1]",
            "v3 = v0.median()",
        ),
    ),
    "a number that was taken for a pending sum drove out what had been brought, with caches cold": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((3,), 'float64', 655, 122, grad=True)",
            "v1 = fresh((), 'float64', 174, 733)",
            "v2 = fresh((5, 2, 3), 'float64', 661, 627)",
            "v3 = v0 > v0",
            "v4 = torch.fft.fftshift(v0)",
            "v5 = v0.index_reduce(-1, put([2, 1, 1], 816), fresh((3,), 'float64', 290, 345), 'amax')",
            "v6 = torch.fmod(v1, 0.75)",
            "v7 = torch.abs(v4)",
            "v8 = torch.aminmax(v5)",
            "v9 = v0[v3]",
        ),
        order=2,
    ),
    "a write to a product told of a view that nobody has, in one memory": Program(
        {"b": 2, "c": 2},
        (
            "v0 = fresh((3, 1, 2, 1), 'float64', 887, 575)",
            "v1 = F.linear(v0, fresh((1, 1), 'float64', 428, 917))",
            "v1.flatten().add_(1)",
        ),
    ),
    "random numbers like a folded tensor moved its elements, in one memory": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((3, 4, 4), 'float64', 658, 976)",
            "v1 = v0.reshape(48)",
            "v2 = (torch.manual_seed(2), torch.randn_like(v1))[1]",
        ),
    ),
    "views of every second element of what is pending had other strides, in one memory": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((1, 3, 3), 'float64', 186, 11)",
            "v1 = v0.as_strided((3,), (2,), 2)",
            "v2 = v1.tensor_split(2, 0)",
        ),
    ),
    "a view of elements that are one, transposed, had other strides, in one memory": Program(
        {"c": 2},
        ("v0 = fresh((3,), 'float64', 711, 289)", "v1 = v0.as_strided((2, 2), (1, 1))", "v2 = v1.swapaxes(0, 1)"),
    ),
    "parts of a pending view with gaps had other strides": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((2, 4, 6), 'float64', 186, 11)",
            "v1 = v0[:, :, ::2]",
            "v2 = v1.unsafe_chunk(2, 1)",
            "v3 = v1.chunk(2, 2)",
        ),
    ),
    "a sharded tensor could not say where to split another": Program(
        {"a": 2, "b": 2},
        ("v0 = fresh((2, 4, 6), 'float64', 186, 8)", "v1 = v0.tensor_split(put([1, 3], 9), 1)"),
    ),
    "elements beyond the real part of a complex view were complex": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 3), 'complex128', 186, 8)",
            "v1 = v0[1:].T.real",
            "v2 = v1.as_strided((2,), (2,), 1)",
            "v3 = v0.view(torch.float64)[1:].as_strided((2, 2), (2, 1), 1)",
        ),
    ),
    "what was filled of a split transposed view had other strides, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 3), 'float64', 186, 8)",
            "v1 = v0.T.split(2, 0)",
            "v2 = v1[0].index_fill(0, put([1], 3), 2.0)",
            "v3 = F.binary_cross_entropy(v1[0].sigmoid(), v1[0].sigmoid(), reduction='none')",
        ),
    ),
    "a convolution of rows of one channel, cut of longer ones, had other strides, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 5, 1), 'float64', 186, 68)",
            "v1 = F.conv_transpose1d(v0.mT[..., :4], fresh((1, 2, 3), 'float64', 3, 68))",
        ),
    ),
    "contributions of a view were asked of what its base had become, in one memory": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((1, 3, 1), 'float64', 996, 938)",
            "v1 = v0.sum((2, 0))",
            "v2 = v1.as_strided((1, 2), (1, 2))",
            "v1.unsqueeze_(1)",
            "torch.mul(v2, 2, out=v2)",
        ),
    ),
    "a transposed convolution of no signals was refused": Program(
        {"b": 2},
        (
            "v0 = fresh((0, 2, 0), 'float64', 769, 68)",
            "v1 = F.conv_transpose1d(v0, fresh((2, 1, 2), 'float64', 679, 68), stride=2)",
        ),
    ),
    "a process without samples refused the class that others have, in two processes": Program(
        {"a": 2, "b": 2, "c": 2},
        ("v0 = fresh((1, 1), 'float64', 901, 770)", "v1 = F.cross_entropy(v0, put([0], 782), label_smoothing=0.1)"),
    ),
    "what is written by an index that has no values was refused, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 4), 'float64', 9, 8)",
            "v1 = v0.index_fill(0, put([0, 2], 8), -0.5)",
            "v1[:, put([-2, 1], 381)] = 2",
            "v1.index_add_(-1, put([0], 829), fresh((3, 1), 'float64', 688, 899))",
            "v2 = v1[torch.randperm(2)]",
            "torch.matmul(v1, v0.mT, out=v1.new_empty(0))",
        ),
    ),
    "a second gradient that there is none of was refused where a gradient had been brought back": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((1, 2, 1), 'complex128', 348, 967, grad=True)",
            "v1 = F.conv_transpose1d(v0, fresh((2, 1, 1), 'complex128', 970, 556), stride=2)",
        ),
        order=2,
    ),
    "a view that is a copy did not show what was written after its base was transposed in place, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 1), 'float64', 758, 726)",
            "v1 = v0.diagonal(0, -1, 0)",
            "v0.transpose_(0, -1)",
            "v2 = v1 * 2",
            "v0.add_(1)",
        ),
    ),
    "what was added to a view of looked-up rows was not there in the rows, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((4, 1), 'float64', 614, 1001)[put([3, -2, 2], 1001)]",
            "v1 = v0.reshape(1, 3).transpose(0, -1)",
            "v1.index_add_(0, put([1, 0, 2], 941), fresh((3, 1), 'float64', 27, 68))",
        ),
    ),
    "a list op that was repeated drove out what was kept of other tensors": Program(
        {"b": 2, "c": 2},
        (
            "v0 = fresh((1,), 'float64', 893, 68)",
            "v1 = fresh((1,), 'float64', 734, 74)",
            "v2 = v1.nanmedian()",
            "torch._foreach_zero_([v0])",
            "v3 = torch.unique_consecutive(v1)",
        ),
    ),
    "what was selected of a stack and written to was told in another shape when it was read again, in one memory": Program(
        {"x": 2},
        ("v0 = fresh((3, 1, 2), 'float64', 518, 367)", "v1 = v0.select(2, 1)", "v1.mul_(2)", "v2 = torch.square(v1)"),
    ),
    "what was selected of a stack was sent for a view beyond it that needs none of it, in one memory": Program(
        {"b": 2, "c": 2},
        (
            "v0 = fresh((1, 2, 3), 'bool', 786, 28)",
            "v1 = torch.select(v0, 2, -1)",
            "v2 = v1.as_strided((3, 2), (1, 1))",
        ),
    ),
    "what was selected of a stack and copied to itself was sent twice, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 2), 'float64', 536, 452)",
            "v1 = torch.linalg.vander(v0)",
            "v2 = torch.select(v1, 1, -1)",
            "v2.mT.copy_(v2.mT)",
        ),
    ),
    "windows of a resolved sum were told twice, in one memory": Program(
        {"a": 2, "b": 2},
        ("v0 = fresh((1, 2), 'bfloat16', 652, 289)", "v1 = v0.sigmoid()", "v2 = v0.unfold(1, 2, 2)"),
    ),
    "windows of a resolved sum were not resolved, memories apart": Program(
        {"a": 2, "b": 2, "c": 2},
        ("v0 = fresh((1, 1), 'float64', 678, 321, grad=True)", "v1 = F.silu(v0)", "v2 = v0.unfold(0, 1, 1)"),
    ),
    "what was brought did not serve again where a device has one row, memories apart": Program(
        {"a": 2, "b": 2, "c": 2},
        (
            "v0 = fresh((2, 2, 2), 'bfloat16', 979, 428)",
            "v1 = torch.einsum('...ij,...kj->...ik', v0, v0)",
            "v2 = torch.logcumsumexp(v0, 1)",
        ),
    ),
    "what devices cut of what they had drove out what had been brought": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 1, 1), 'complex128', 687, 68, grad=True)",
            "v1 = v0 * 0",
            "v1[put([1, 0], 372)] += 1",
            "v2 = v1.prod()",
        ),
        order=2,
    ),
    "statistics of one channel were gathered, and again after any write, memories apart": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((1, 1, 2), 'float64', 822, 880, grad=True)",
            "v1 = F.batch_norm(v0, None, None, None, None, training=True)",
            "v2 = v0.quantile(0.25, 2)",
        ),
    ),
    "an input of which only the shape counts was brought for a gradient, in one memory": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 1, 1, 3), 'float64', 872, 190, grad=True)",
            "v1 = torch.fft.fft(v0)",
            "v2 = F.conv2d(v1, fresh((1, 1, 1, 2), 'complex128', 163, 68), None, stride=(2, 1), padding=(1, 2))",
            "v3 = torch.addmm(fresh((4,), 'complex128', 84, 68), v2.flatten(0, -2), fresh((6, 4), 'complex128', 861, 197))",
        ),
    ),
    "numbers of no elements had other strides, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 1, 1), 'float64', 565, 68)",
            "v1 = v0.as_strided((0, 2), (1, 3)) + 3",
            "v2 = torch.view_as_complex(v1)",
            "v3 = fresh((0, 1), 'complex128', 703, 68)",
            "v4 = (torch.manual_seed(6), torch.randn_like(v3))[1]",
            "v5 = v4.view(torch.int64)",
        ),
    ),
    "rows of a transposed table had other strides, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 2, 2), 'float64', 516, 68)[put([-1], 1001)]",
            "v1 = v0.transpose(1, 2)",
            "v2 = v1[put([0, 0, 0, 0], 452)]",
            "v3 = v2.squeeze(-1)",
        ),
    ),
    "the transform of an expanded tensor had other strides, in one memory": Program(
        {"x": 3},
        (
            "v0 = fresh((3, 4, 3), 'float64', 167, 68)",
            "v1 = torch.where(v0.diagonal(1) > 0, fresh((3, 3), 'float64', 496, 801), -0.5)",
            "v2 = v1.expand(2, -1, 3)",
            "v3 = torch.fft.rfft(v2, dim=2)",
        ),
    ),
    "looked-up rows as a number were another error": Program(
        {"x": 3},
        (
            "v0 = fresh((3,), 'int64', 854, 212)",
            "v1 = torch.index_select(v0, 0, put([1, 0, 2], 641))",
            "v2 = v1.view(())",
        ),
    ),
    "norms along dims counted from the end were refused, memories apart, by torch 2.11": Program(
        {"x": 2}, ("v0 = fresh((4, 1), 'float64', 615, 68)", "v1 = torch.norm(v0, 3, -1)", "v2 = v0.norm(dim=(-1, 0))")
    ),
    "means of bags of a split table that has no values were refused, memories apart": Program(
        {"a": 2, "b": 2},
        ("v0 = F.embedding_bag(put([[3, 1]], 385), fresh((4, 1), 'float64', 471, 371), mode='mean')",),
    ),
    "elements beyond a part of a conjugate were not conjugated": Program(
        {"x": 2},
        ("v0 = fresh((2,), 'complex128', 554, 68)", "v1 = v0.conj()", "v2 = v1[0].as_strided((1,), (1,), 1)"),
    ),
    "the conjugate of an expanded tensor had other strides, in one memory": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 1, 1), 'complex128', 445, 68)",
            "v1 = v0.expand(2, 3, -1, -1)",
            "v2 = v1.conj()",
            "v3 = v2 * 2",
            "v0.add_(1)",
            "v4 = v2 + 1",
        ),
    ),
    "the conjugate of what only some devices have did not say that it is one": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 1, 1), 'float64', 571, 68)[put([1, -1, -4], 1001)]",
            "v1 = torch.fft.ifft(v0[0], dim=1)",
            "v2 = fresh((3,), 'complex128', 227, 1001)[-1]",
            "v3 = v2.conj()",
            "v3.mul_(2)",
            "v4 = v3 + v2",
        ),
    ),
    "what was resolved for a write to a view was kept in one memory alone": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((1, 1, 5), 'float64', 682, 526)",
            "v1 = v0.sum((0,), dtype=torch.float64)",
            "v2 = v1.as_strided((3,), (1,), 2)",
            "v2.put_(put([2, 0], 316), fresh((2,), 'float64', 458, 68))",
            "v3 = torch.index_select(v2, 0, put([2, 1], 513))",
        ),
    ),
    "a view turned in place drove out what was resolved of another tensor, memories apart": Program(
        {"a": 2, "b": 2, "c": 2},
        (
            "v0 = fresh((4,), 'float64', 380, 405)",
            "v1 = fresh((1, 1, 1), 'int64', 138, 861)",
            "v2 = v1[:0]",
            "v3 = torch.linalg.vector_norm(v0, 0, 0)",
            "v2.swapaxes_(0, -1)",
            "v4 = v0[fresh((4,), 'bool', 671, 68)]",
        ),
    ),
    "a write to a view drove out an index that had been brought, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((2, 4), 'complex128', 838, 68, grad=True)",
            "v1 = move(v0, 588)",
            "v2 = v1.scatter(1, put([[1, 3, 2]], 877), 3)",
            "v1.fill_diagonal_(-1)",
        ),
    ),
    "devices without a value contributed zeros to what is the smallest, in one memory": Program(
        {"a": 2, "b": 2, "c": 2},
        ("v0 = fresh((2, 0, 1), 'float64', 774, 851)", "v1 = v0[-2, None, :-1, ...]", "v2 = v1.all()"),
    ),
    "pairs of which a device has none could not be complex numbers, memories apart": Program(
        {"x": 2},
        ("v0 = fresh((2, 1), 'float64', 274, 863)", "v1 = v0.swapaxes(1, 0)", "v2 = torch.view_as_complex(v1)"),
    ),
    "rows added to what was found had other strides, in one memory": Program(
        {"x": 3},
        (
            "v0 = torch.argwhere(fresh((1, 2), 'float64', 310, 835))",
            "v1 = v0.index_put((put([1, 1, 1, 1], 872),), fresh((4, 2), 'int64', 128, 583), accumulate=True)",
        ),
    ),
    "a product with a resolved mean had other strides, in one memory": Program(
        {"a": 2, "b": 2, "c": 2},
        (
            "v0 = fresh((3, 1, 1, 1), 'float64', 7, 212)",
            "v1 = torch.einsum('abcd,cz->za', v0, fresh((1, 2), 'float64', 8, 1))",
        ),
    ),
    "looked-up rows could not be compared, with torch 2.11": Program(
        {"x": 2},
        (
            "v0 = fresh((2,), 'float64', 181, 1001)[put([-1, 1, -2], 1001)]",
            "v1 = torch.equal(v0, fresh((3,), 'float64', 170, 68))",
            "v2 = torch.equal(v0, v0)",
        ),
    ),
    "a view that was written through was not read again beside looked-up rows, memories apart": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((4, 3), 'bfloat16', 984, 547)",
            "v1 = fresh((2,), 'bfloat16', 697, 917)",
            "v2 = torch.index_select(v1, 0, put([1, 1, 1], 722))",
            "v3 = v0.diagonal(-1)",
            "v3.pow_(2)",
            "v4 = v2 > v3",
            "v0.mul_(4)",
            "v5 = v2 + v3",
        ),
    ),
    "more than two merged dims were transposed by t()": Program(
        {"a": 2, "b": 2, "c": 2},
        ("v0 = fresh((4, 3, 3), 'float64', 839, 331)", "v1 = v0.view(12, 1, 3)", "v2 = v1.t()"),
    ),
    "an index of numbers that is out of range was another error": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((2,), 'complex128', 145, 379)",
            "v1 = v0.index_add(0, put([0, 2, 3], 197), fresh((3,), 'complex128', 641, 815))",
            "v2 = v0.index_add(0, put([0, 2, 3], 197), fresh((3,), 'complex128', 641, 68))",
        ),
    ),
    "a tensor could not be written to by what squeeze left as it was, memories apart": Program(
        {"a": 2, "b": 2, "c": 2},
        ("v0 = fresh((1, 2), 'float64', 198, 685)", "v1 = v0.squeeze(1)", "v0.addcmul_(v1, v1)"),
    ),
    "what looks row by row but for dims of size 1 was not computed so, memories apart": Program(
        {"c": 2},
        (
            "v0 = fresh((1, 2), 'float64', 475, 68)",
            "v0.t_()",
            "v1 = torch.hypot(v0, v0)",
            "v2 = torch.einsum('...ij,...kj->...ik', v1, fresh((2, 1), 'float64', 600, 68))",
            "v3 = F.silu(fresh((2, 1, 3, 1), 'float64', 117, 68).movedim(-4, 3))",
            "v4 = F.conv2d(v3, fresh((2, 3, 1, 1), 'float64', 115, 68), None, stride=(2, 1), padding=(1, 2))",
        ),
    ),
    "what was looked up along dims of size 1 had other strides, memories apart": Program(
        {"x": 3},
        ("v0 = fresh((2, 1, 1), 'complex128', 640, 68)", "v1 = v0.T", "v2 = v1[:, put([0, 0, 0, 0], 299)]"),
    ),
    "what was brought beside a resolved sum was told the first time only, in one memory": Program(
        {"c": 2},
        (
            "v0 = fresh((1, 2, 2), 'float64', 615, 68)",
            "v1 = v0 @ fresh((1, 1, 2), 'float64', 429, 12).mT",
            "v2 = v1 <= fresh((1, 1, 1), 'float64', 372, 192)",
        ),
    ),
    "looked-up rows of which each device has one were squeezed there, memories apart": Program(
        {"x": 2},
        ("v0 = fresh((2, 1), 'complex128', 506, 1001)[put([-1, -2], 1001)]", "v1 = v0.squeeze(0)", "v2 = v0.squeeze()"),
    ),
    "a number was written to by two, of which a device had one, memories apart": Program(
        {"x": 2}, ("v0 = fresh((1,), 'int64', 3, 1001)", "v0.eq_(fresh((2,), 'int64', 256, 416))")
    ),
    "places that stood in for others let a kernel write beside its memory, in two processes": Program(
        {"a": 2, "b": 2, "c": 2},
        (
            "v0 = fresh((1, 1, 1, 1), 'float64', 907, 59, grad=True)",
            "v1 = F.max_pool2d(v0, 1, 1)",
        ),
    ),
    "what was brought did not serve again turned, where a dim has size 1, in one memory": Program(
        {"b": 2, "c": 2},
        (
            "v0 = fresh((1, 5, 5), 'float64', 747, 802)",
            "v1 = torch.linalg.matrix_power(v0, 2)",
            "v2 = torch.linalg.cholesky(v0 @ v0.mH + 2 * torch.eye(5, dtype=torch.float64))",
        ),
    ),
    "heads of a layer that eight devices split were taken from the wrong places, memories apart": Program(
        {"a": 2, "b": 2, "c": 2}, ("v0 = fresh((3, 8), 'float64', 1, 60)", "v1 = v0.view(6, 4)")
    ),
    "sums and scans into a tensor of another dtype were computed in their own": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 0, 1), 'bool', 843, 68)",
            "torch.cumsum(v0, 0, out=v0)",
            "v2 = fresh((3, 2), 'bool', 84, 9)",
            "v3 = torch.sum(v2, 0, out=v2.new_empty(0))",
            "v4 = torch.prod(fresh((4,), 'float64', 8, 9), 0, out=v2.new_empty(0, dtype=torch.int8))",
        ),
    ),
    "a number in all places, brought beside a transposed tensor, told how the result lies, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 3), 'float64', 5, 9)",
            "v1 = fresh((), 'float64', 7, 68).expand(3, 3)",
            "v2 = v1 * move(v0, 19).mT",
            "v3 = v1 + move(v0, 61).mT",
        ),
    ),
    "the logarithm of a sigmoid lay in another way, in one memory": Program(
        {"x": 2}, ("v0 = fresh((2, 3), 'float64', 5, 9, grad=True)", "v1 = F.logsigmoid(v0.mT)")
    ),
    "indices to add at in the middle of a tensor were another error, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 1, 2), 'float64', 630, 965)",
            "v1 = v0.index_add(1, put([5], 11), fresh((4, 1, 2), 'float64', 722, 68))",
            "v2 = fresh((4, 2), 'float64', 630, 9)",
            "v3 = v2.index_add(0, put([5], 68), fresh((1, 2), 'float64', 722, 68), alpha=2)",
        ),
    ),
    "a merged view of an expanded number that was resolved was refused, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((), 'int64', 30, 875)",
            "v1 = v0.expand(2)",
            "v2 = torch.cartesian_prod(v1.flatten()[:3], put([1, 2], 2))",
        ),
    ),
    "a soft margin of fewer numbers than targets was accepted, memories apart, and by some of two processes": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 3), 'float64', 5, 68)",
            "v1 = F.soft_margin_loss(v0, fresh((2, 3), 'float64', 6, 4).sign())",
            "v2 = F.soft_margin_loss(fresh((2, 3), 'float64', 6, 4), v0.sign())",
        ),
    ),
    "a copy forgot the strides of dims of size 1, after which products lie, memories apart": Program(
        {"b": 2},
        (
            "v0 = fresh((1, 1, 2), 'bfloat16', 427, 68)",
            "v1 = v0.permute(2, 1, 0)",
            "v2 = torch.kron(v0.contiguous().clone(), v1.contiguous().clone())",
            "v3 = v1.clone().stride()",
        ),
    ),
    "batch norm of what may have its channels last, or not, lay row by row": Program(
        {"b": 2},
        (
            "v0 = fresh((5, 2), 'float64', 843, 556)",
            "v1 = v0.reshape(-1, 2, 1, 1).transpose(0, -1)",
            "v2 = F.batch_norm(v1, None, None, fresh((2,), 'float64', 299, 832), fresh((2,), 'float64', 970, 154), training=True)",
        ),
    ),
    "sums of short integers that are pending were made long before they wrapped around": Program(
        {"a": 2, "b": 2},
        ("v0 = fresh((1, 1), 'uint8', 303, 147)", "v1 = v0.sum()", "v2 = v0.cumsum(0)", "v3 = v0.sum(1)"),
    ),
    "infinite integers were another error, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 0), 'int64', 5, 9)",
            "v1 = v0.masked_fill(fresh((3, 0), 'bool', 5, 9), inf)",
            "v2 = fresh((3, 2), 'int32', 5, 9).masked_fill(fresh((3, 2), 'bool', 5, 9), nan)",
        ),
    ),
    "a flipped row forgot how it lay, after which products lie, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 1), 'float64', 825, 68)",
            "v1 = torch.stack([v0, v0], 2).permute(0, 2, 1)",
            "v2 = torch.einsum('...ij,...kj->...ik', v1, v1.flip((-1, -2)))",
            "v3 = [torch.remainder(v1, 2).stride(), torch.nan_to_num(v1).stride(), v1.flip(0).stride(), v1.tril().stride()]",
        ),
    ),
    "what some devices have alone did not go where there is no memory": Program(
        {"x": 2},
        ("v0 = fresh((4, 2, 3), 'float64', 5, 1001)", "v1 = v0[1] * 2", "v2 = str(v1.to('meta').device)"),
    ),
    "the gradient of a sign was added to what only some of two processes have": Program(
        {"a": 4, "b": 2},
        (
            "v1 = fresh((2, 8, 2, 4), 'float64', 114, 839, grad=True)",
            "v2 = v1.swapaxes(-4, 1)",
            "v5 = torch.log(v2.abs() + 0.5)",
            "v7 = v2.unbind(-4)",
            "v10 = F.glu(v7[2], 1)",
        ),
        order=2,
    ),
    "a list of tensors counted its writes before what they show was written, and read that again, memories apart": Program(
        {"b": 2},
        (
            "v0 = fresh((14,), 'int64', 475, 777)",
            "v1 = v0.as_strided((4, 3), (3, 1))",
            "v2 = v1.as_strided((6,), (2,))",
            "torch._foreach_mul_([v2], [2])",
            "v4 = v1 + 1",
        ),
    ),
    "a list with views of split dims was told otherwise after it was written to, in one memory": Program(
        {"b": 2},
        (
            "v0 = fresh((1, 1), 'bfloat16', 479, 61)",
            "v1 = v0.squeeze(0)",
            "torch._foreach_add_([v1, v1.clone()], 1.5)",
            "v3 = v1[-1]",
        ),
    ),
    "a list of views of one tensor was told what it read between its writes, memories apart": Program(
        {"b": 2},
        (
            "v0 = fresh((4, 2), 'float64', 479, 1001)",
            "v1 = v0[:, 0]",
            "v2 = v0.flatten()",
            "torch._foreach_mul_([v1, v2], [2, 3])",
            "v4 = v1 + 1",
            "torch._foreach_add_([v1, v1], 1.5)",
            "v6 = v2 + 1",
        ),
    ),
    "a transform of windows that overlap had other strides, memories apart": Program(
        {"c": 2},
        ("v1 = fresh((2, 3), 'float64', 659, 68)", "v5 = v1.unfold(-1, 2, 1)", "v9 = torch.fft.rfft(v5, dim=0)"),
    ),
    "a conjugate of a pending view had no gaps, in one memory": Program(
        {"x": 2},
        ("v2 = fresh((2, 3), 'complex128', 879, 705)", "v5 = v2.narrow(1, 2, 1)", "v18 = v5.mH", "v19 = v18 * 2"),
    ),
    "a view of what was computed of a selected part did not show that it was written to, memories apart": Program(
        {"a": 4, "b": 2},
        (
            "v1 = fresh((5, 2, 3), 'float32', 624, 403)",
            "v7 = v1.split(1, 2)",
            "v9 = v7[1][3]",
            "v11 = v9.abs()",
            "v13 = v11.transpose(0, 1)",
            "v11.zero_()",
            "v17 = v13 + 1",
            "v18 = v13.nansum(1)",
        ),
    ),
    "a view in another dtype had the strides of one of a tensor in another dtype before, memories apart": Program(
        {"c": 2},
        (
            "v0 = fresh((3, 2), 'float64', 261, 68)",
            "v1 = v0.view(torch.int64)",
            "v2 = fresh((3, 2), 'float32', 261, 68)",
            "v3 = v2.view(torch.int64)",
            "v4 = v2[1:].view(torch.int64).storage_offset()",
            "v5 = torch.view_as_real(fresh((3, 2), 'complex128', 7, 68)[1:]).storage_offset()",
        ),
    ),
    "the tangent of a view with gaps had none, so that torch refused a view of it, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 4), 'float64', 92, 771)",
            "v1 = v0.narrow(1, 1, 2)",
            "v2 = fresh((4, 2), 'float64', 658, 458)",
            "v3 = torch.func.jvp(lambda t: t @ t.mT, (v1,), (v2,))",
            "v4 = torch.func.jvp(lambda t: t, (v1,), (v2,))",
            "v5 = torch.func.jvp(lambda t: t.mT, (v0[:, ::2],), (v2,))",
        ),
        order=0,
    ),
    "the tangent of an expanded tensor was taken for one row of it, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 4), 'float64', 9, 8)",
            "v1 = v0.expand(2, 4)",
            "v2 = torch.func.jvp(torch.sin, (v1,), (fresh((2, 4), 'float64', 5, 9),))",
        ),
        order=0,
    ),
    "tensors were brought to be asked for their shape, and not twice in one memory": Program(
        {"x": 3},
        (
            "v0 = fresh((4, 4), 'float64', 345, 30)",
            "v1 = v0.unsqueeze(0)",
            "v2 = fresh((1, 4, 4), 'float64', 353, 834)",
            "v3 = torch.func.jvp(lambda t: t @ t.mT, (v1,), (v2,))",
        ),
        order=0,
    ),
    "a device that has nothing of a selected part could not transform it, memories apart": Program(
        {"b": 2, "c": 2},
        (
            "v0 = fresh((1, 1, 2, 3), 'complex128', 374, 398)",
            "v1 = v0.unbind(3)",
            "v2 = torch.fft.irfft(v1[2])",
            "v3 = v1[2].real.amax(1)",
        ),
    ),
    "complex numbers to fill others with were refused where torch takes them, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((3,), 'bool', 5, 9)",
            "v1 = v0.masked_fill(fresh((3,), 'bool', 6, 9), 1j)",
            "v2 = fresh((3,), 'int64', 5, 9).masked_fill(v0, 2 + 0j)",
            "v3 = fresh((3,), 'float64', 5, 9).masked_fill(v0, torch.tensor(2 + 0j))",
            "v4 = fresh((3,), 'int64', 5, 9).masked_fill(v0, 1j)",
        ),
        order=0,
    ),
    "dims of size 1 had other strides than those that were asked for, or copied": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 4), 'float64', 5, 9)",
            "v1 = (v0.as_strided((1, 3), (5, 4)).stride(), v0.as_strided((3, 1), (4, 7)).stride(), v0.as_strided((1,), (9,), 2).stride())",
            "v2 = v0[:, :1].diagonal_scatter(fresh((1,), 'float64', 6, 9)).stride()",
            "v3 = v0[::2].diagonal_scatter(fresh((2,), 'float64', 6, 9))",
            "v4 = v0[1:].diagonal_scatter(fresh((2,), 'float64', 6, 9)).storage_offset()",
            "v5 = v0.view(1, 3, 4).permute(2, 0, 1)[:1].index_copy(0, put([0], 68)[:0], fresh((0, 1, 3), 'float64', 6, 9)).stride()",
        ),
        order=0,
    ),
    "a view that was squeezed in place did not show what was written to what it is a view of, memories apart": Program(
        {"x": 3},
        (
            "v1 = fresh((1, 5, 1), 'float64', 841, 293)",
            "v4 = torch.select(v1, -1, -1)",
            "v4.squeeze_()",
            "torch._foreach_copy_([v1], [fresh((1, 5, 1), 'float64', 624, 68)])",
        ),
        order=0,
    ),
    "windows of a pending tensor lay as a copy of them, and were told otherwise, in one memory": Program(
        {"a": 2, "b": 2, "c": 2},
        (
            "v1 = fresh((5, 2), 'float64', 616, 107)",
            "v5 = v1.unfold(0, 3, 1)",
            "v8 = F.adaptive_max_pool1d(v5, 2)",
            "v9 = F.max_pool2d(v5.unsqueeze(2), 1)",
        ),
        order=0,
    ),
    "what was brought for one product was brought again for another where some devices have none of it, memories apart": Program(
        {"a": 2, "b": 2, "c": 2},
        (
            "v2 = fresh((4, 2, 2), 'complex128', 811, 671, grad=True)",
            "v6 = torch.view_as_real(v2)",
            "v13 = torch.einsum('...ij,...kj->...ik', v6, v6)",
            "v14 = v13.var()",
        ),
        order=2,
    ),
    "an `out` that had another shape lay row by row where it lies as the result does": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((4, 3), 'float64', 5, 9)",
            "v1 = torch.add(v0.t(), 1, out=fresh((0,), 'float64', 6, 68))",
            "v2 = torch.exp(v0.t(), out=torch.empty(0, dtype=torch.float64))",
            "v3 = torch.linalg.qr(v0, out=(fresh((0,), 'float64', 6, 68), fresh((2, 2), 'float64', 6, 5)))",
            "v4 = torch.fft.fft(v0.t(), out=fresh((0,), 'complex128', 6, 68))",
            "v5 = torch.slice_scatter(v0.t(), v0.t()[:1], 0, 0, 1, out=fresh((0,), 'float64', 6, 68))",
        ),
        order=0,
    ),
    "values that a mask says were refused without memory, which torch takes": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 3), 'float64', 5, 9)",
            "v1 = v0.index_put((fresh((4, 3), 'bool', 3, 6),), fresh((), 'float64', 9, 8), accumulate=True)",
            "v0[fresh((4,), 'bool', 3, 9)] = fresh((3,), 'float64', 8, 5)",
        ),
        order=0,
    ),
    "imaginary parts were taken for the real ones that were brought before, where a process has no elements": Program(
        {"a": 4, "b": 2},
        (
            "v0 = fresh((8, 2, 8), 'complex128', 480, 68)",
            "v1 = F.conv1d(v0, fresh((2, 2, 2), 'complex128', 497, 454), stride=2, padding=1)",
        ),
        order=0,
    ),
    "what was rolled lay row by row where torch puts parts with channels last together, memories apart": Program(
        {"b": 2},
        (
            "v2 = fresh((2, 3, 2, 2), 'float64', 519, 68)",
            "v6 = v2.contiguous(memory_format=torch.channels_last)",
            "v10 = torch.roll(v6, 2, -3)",
            "v11 = torch.roll(v6, (1, 1), (1, 2))",
            "v12 = torch.roll(v6, (1, 4), (0, 2))",
            "v13 = torch.roll(v6, 3, 1)",
            "v14 = torch.roll(v6, 3)",
        ),
        order=0,
    ),
    "a convolution resolved what was pending, and then did not need it, before it was known, memories apart": Program(
        {"a": 4, "b": 2},
        (
            "v2 = fresh((2, 8, 8), 'complex128', 480, 291)",
            "v6 = v2.movedim(1, 0)",
            "v7 = F.conv1d(v6, fresh((2, 2, 2), 'complex128', 497, 454), fresh((2,), 'complex128', 607, 916), stride=2, padding=1)",
        ),
        order=0,
    ),
    "dot products that torch gives as conjugates were not said to be": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((5,), 'complex128', 5, 9, grad=True)",
            "v1 = fresh((5,), 'complex128', 6, 5)",
            "v2 = torch.vdot(v0, v1.conj())",
            "v3 = torch.dot(v0.conj(), v1.conj())",
            "v4 = torch.vdot(v0.conj(), v1.conj())",
            "v5 = torch.dot(v0, v1.conj())",
            "v6 = v2 * v3",
        ),
    ),
    "a transform had dims that are left alone in another order where their strides do not tell it, memories apart": Program(
        {"b": 2},
        (
            "v1 = fresh((2, 1, 2, 1), 'float32', 805, 68)",
            "v10 = torch.vsplit(v1, 2)",
            "v11 = torch.fft.ifft(v10[1], dim=1)",
            "v12 = torch.column_stack([v11, v11])",
        ),
        order=0,
    ),
    "a product was added to nothing of another shape where that is as large as a part of the product, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((6, 3), 'float64', 90, 1001)",
            "v1 = torch.addmm(fresh((3, 1), 'float64', 768, 68), v0, fresh((3, 1), 'float64', 791, 68), beta=0)",
            "v2 = torch.addmv(fresh((3,), 'float64', 768, 68), v0, fresh((3,), 'float64', 791, 68), beta=0)",
        ),
        order=0,
    ),
    "the conjugate of a part of what is resolved was resolved again, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 2), 'complex128', 7, 939, grad=True)",
            "v1 = torch.outer(v0[0].conj(), v0[1])",
        ),
    ),
    "pending bytes that had come round were as large as ever once they were multiplied by a fraction": Program(
        {"x": 2},
        (
            "v1 = fresh((2,), 'uint8', 481, 68)",
            "v6 = v1.index_put((put([1, 1, 0], 48),), fresh((3,), 'uint8', 704, 68), accumulate=True)",
            "v7 = v6 * 1.5",
            "v8 = v6.double()",
            "v9 = v6 / 2",
            "v10 = v6.sum()",
            "v11 = v6 + v6",
        ),
        order=0,
    ),
    "a permutation of more dims than there are was refused in other words": Program(
        {"x": 2},
        ("v0 = fresh((), 'complex128', 970, 68)", "v1 = v0.permute(0)", "v2 = v0.permute(0, 0)"),
        order=0,
    ),
    "parts of running sums in short whole numbers became long ones, memories apart": Program(
        {"x": 3},
        (
            "v0 = fresh((8, 5), 'int32', 839, 68)",
            "v1 = move(v0, 638)",
            "v2 = torch.cumsum(v1, 0, dtype=torch.int32)",
            "v3 = torch.cumprod(v1, 0, dtype=torch.uint8)",
            "v4 = torch.cumsum(v1, 0, dtype=torch.bool)",
            "v5 = v2 * 2",
            "v6 = fresh((0, 8, 5), 'bool', 839, 638)",
            "torch.cumsum(v6, 1, out=v6)",
        ),
        order=0,
    ),
    "what is added to a product was added infinitely often as nothing by other devices": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 1, 1, 1), 'float64', 293, 68)",
            "v4 = torch.addmm(fresh((1, 3), 'float64', 298, 68), v0.flatten(0, -2), fresh((1, 3), 'float64', 610, 778), beta=inf)",
            "v5 = fresh((4, 3), 'float64', 298, 9) * torch.tensor([inf])",
            "v6 = fresh((4, 3), 'float64', 298, 9) / torch.tensor([[0.0]])",
        ),
        order=0,
    ),
    "an index beyond the third dim was another error": Program(
        {"a": 4, "b": 2},
        (
            "v2 = fresh((1, 1, 1), 'float64', 575, 230)",
            "v13 = torch.index_select(v2, 2, put([3], 185))",
            "v14 = torch.index_select(v2, 1, put([3], 185))",
        ),
        order=0,
    ),
    "a sum less itself was not nothing where more of it had to become pending, in one memory": Program(
        {"a": 4, "b": 2},
        (
            "v0 = fresh((1, 2, 3, 1), 'float64', 948, 820)",
            "v13 = v0.sum((1, 0), dtype=torch.float64)",
            "v16 = torch.cov(v13)",
            "v17 = (v13 - v13.sum(1, keepdim=True)) / 0",
        ),
        order=0,
    ),
    "products of copies of which strides allow no view were taken, where elements are exchanged": Program(
        {"x": 2},
        ("v0 = fresh((2, 1, 3), 'float64', 5, 9)", "v2 = torch.kron(v0.transpose(0, 1).clone(), v0.mT.clone())"),
        order=0,
    ),
    "a sum of numbers along no dims, which is along all, was refused": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 1, 1), 'float64', 119, 68)",
            "v1 = v0.nansum(())",
            "v2 = fresh((4, 3), 'float64', 119, 9)",
            "v3 = v2.nansum((), keepdim=True)",
            "v4 = v2.nanmean(())",
        ),
        order=0,
    ),
    "a matrix that cannot be inverted was refused by the process that has it, and by no other": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 2, 2), 'float64', 734, 1001)",
            "v1 = torch.cholesky_inverse(v0.tril() * put([[[0.0]], [[1.0]], [[1.0]]], 1001))",
            "v2 = torch.linalg.eig(v0 / put([[[0.0]], [[1.0]], [[1.0]]], 1001))[0]",
            "v3 = torch.cholesky_inverse(v0.tril() + 3 * torch.eye(2, dtype=torch.float64))",
            "v4 = torch.linalg.eigvalsh(v0 + v0.mT)",
        ),
        order=0,
    ),
    "a transposed view of a reshaped copy did not show in products and reshapes what was written to it": Program(
        {"x": 2},
        (
            "v1 = fresh((6, 6), 'float64', 481, 638)",
            "v3 = torch.hsplit(v1, 3)",
            "v5 = v3[2].reshape(2, 6).transpose(0, -1)",
            "v5.index_fill_(0, put([1, 4, 2], 67), 0.25)",
            "v11 = v5 @ v5.mT",
            "v12 = v5.ravel()",
        ),
        order=0,
    ),
    "a transposed view of a reshape that exchanges elements did not show what was reduced into it": Program(
        {"a": 4, "b": 2},
        (
            "v0 = fresh((4, 6), 'float64', 284, 842)",
            "v4 = v0.movedim(-2, 1)",
            "v8 = v4.reshape(3, 8).transpose(0, -1)",
            "v8.index_reduce_(0, put([5], 170), fresh((1, 3), 'float64', 275, 68), 'amin')",
            "v12 = v8.ravel()",
        ),
        order=0,
    ),
    "parts of a single number were refused by another kind of error": Program(
        {"x": 2}, ("v3 = fresh((), 'float64', 579, 68)", "v3.split(1, 0)[-1].mul_(3)", "v4 = v3.unbind(0)"), order=0
    ),
    "the first of two tensors in lists could not be the smaller one": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 4), 'float64', 12, 9)",
            "v1 = fresh((3, 1), 'float64', 13, 9)",
            "v2 = torch._foreach_sub([v0, v1], [v1, v0], alpha=2)",
            "v3 = torch._foreach_add([fresh((1,), 'float64', 5, 68)], [fresh((0,), 'float64', 6, 68)])",
        ),
        order=0,
    ),
    "bits of a device without elements were refused where the whole has some": Program(
        {"b": 2},
        (
            "v3 = fresh((1, 1), 'bfloat16', 235, 271)",
            "v5 = v3.T",
            "v8 = torch.vmap(lambda t, s: t * s.sum(), (0, None))(v5, v3)",
            "v9 = v8.to(torch.float64)",
            "v13 = v9.view(torch.int32)",
        ),
        order=0,
    ),
    "parts that torch does not know as views did not show what was written to their source, memories apart": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((4, 6), 'float64', 12, 371)",
            "v1 = v0.unsafe_chunk(2, 0)",
            "v2 = v0.unsafe_split_with_sizes([1, 5], 1)",
            "v3 = v1[1] @ v1[0].mT",
            "v0.mul_(2)",
            "v1[1].add_(1)",
            "v4 = v1[1] @ v2[1][2:]",
        ),
        order=0,
    ),
    "dims of size 1 lay in another way in what was computed of a view of a pending tensor": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((3, 2, 4), 'float64', 12, 11)",  # pending
            "v1 = v0.transpose(0, 1)[:1]",
            "v2 = v1.abs()",
            "v3 = torch.tensor(v2.stride())",
            "v4 = torch.maximum(v1, fresh((1, 3, 4), 'float64', 13, 371))",  # which is split
            "v5 = torch.tensor(v4.stride())",
            "v6 = torch.cat([v1.exp(), v4], 1).transpose(1, 2)",
        ),
        order=0,
    ),
    "quantiles that there are not were given, of a sharded q": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((4, 6), 'float64', 12, 371)",
            "v1 = torch.nanquantile(v0, put([-0.5], 5).double())",
            "v2 = torch.quantile(v0, put([0.5, 1.0, 0.25, 1.5], 371).double(), 0)",
        ),
        order=0,
    ),
    "a split dim of size 1 was copied by reshapes that keep it, and brought once more for two products, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((1,), 'float64', 12, 98)",
            "v1 = fresh((4, 2), 'float64', 13, 336)",
            "v2 = torch.kron(v1, v0)",
            "v3 = torch.kron(v0, v1)",
        ),
        order=0,
    ),
    "kernels that conjugate lazily computed with what was not conjugated": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 2), 'complex128', 12, 68, grad=True)",
            "v1 = torch.linalg.pinv(v0)",
            "v2 = torch.linalg.lstsq(v0, fresh((3, 1), 'complex128', 13, 68))",
        ),
    ),
    "a source longer than its split indices was added from its beginning on each device": Program(
        {"x": 2},
        (
            "v0 = fresh((6,), 'float64', 12, 68)",
            "v1 = v0.scatter_add(0, put([1, 4], 4), fresh((3,), 'float64', 13, 4))",
        ),
    ),
    "batch norm of short numbers had no gradient, memories apart, and took numbers of two kinds": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 6), 'bfloat16', 14, 6, grad=True)",
            "v1 = fresh((6,), 'bfloat16', 16, 6).abs() + 1",
            "v2 = F.batch_norm(v0, fresh((6,), 'bfloat16', 17, 6), v1, v1, None, True)",
            "v3 = F.batch_norm(v0, fresh((6,), 'float32', 17, 6), v1.float(), None, None, True)",
            "v4 = F.batch_norm(v0, None, None, v1.float(), v1, True)",
            "v5 = torch.native_batch_norm(v0, None, None, v1, v1, True, 0.1, 1e-5)",
        ),
    ),
    "a number was not added to products of which a device has nothing, memories apart": Program(
        {"x": 4},
        (
            "v0 = torch.addmv(fresh((), 'float64', 12, 68), fresh((3, 5), 'float64', 13, 1001), fresh((5,), 'float64', 14, 68))",
            "v1 = torch.addmv(fresh((1,), 'float64', 12, 9), fresh((5, 2), 'float64', 13, 68), fresh((2,), 'float64', 14, 4))",
        ),
    ),
    "batch norm of what has no gradient had none of its scale either, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 3), 'float64', 14, 6)",
            "v1 = F.batch_norm(v0, None, None, fresh((3,), 'float64', 16, 6, grad=True), None, True)",
            "v2 = fresh((3,), 'float64', 17, 6, grad=True)",
            "v3 = F.batch_norm(v0, None, None, v2, fresh((3,), 'float64', 18, 6), True)",
        ),
    ),
    "the gradient of a view that was taken apart looked for its dims in what was moved before": Program(
        {"x": 2},
        (
            "v0 = fresh((6, 2), 'float64', 12, 1001, grad=True)",
            "v1 = gather(v0).view(2, 3, 2)",
            "v2 = torch.stack(v1.unbind(-1), -1) @ fresh((2, 4), 'float64', 13, 1001)",
            "v3 = v2.square()",
        ),
    ),
    "what torch refuses of one element was refused of none": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 0, 0), 'float64', 372, 68)",
            "v14 = torch.take_along_dim(v0, put(0, 624).expand([2, 0, 2]), -1)",
        ),
        order=0,
    ),
    "a loss of many split classes lay, and moved what it needs, in another way in one memory": Program(
        {"x": 3},
        (
            "v0 = fresh((4, 20001), 'float64', 216, 827, grad=True)",
            "v1 = fresh((20001,), 'float64', 340, 212)",
            "v2 = F.cross_entropy(v0, put([0, 20000, -100, 7000], 127), weight=v1.abs())",
            "v3 = F.cross_entropy(v0, put([0, 20000, -100, 7000], 68), reduction='none')",
        ),
    ),
    "the gradient of a softmax of many split classes was moved to them in one memory only": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((4, 20001), 'float64', 939, 354, grad=True)",
            "v1 = fresh((4, 20001), 'float64', 59, 133, grad=True)",
            "v2 = F.cross_entropy(v0, v1.softmax(1))",
        ),
    ),
    "contributions of floats were cut before they were added up in integers": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((5, 7), 'float64', 758, 111)",
            "v1 = v0.sum(1, dtype=torch.int64)",
            "v2 = v0.cumsum(0, dtype=torch.int64)",
        ),
    ),
    "all along no dim reduced what is split, memories apart": Program(
        {"a": 2, "b": 2}, ("v0 = fresh((5, 7), 'bool', 552, 342)", "v1 = v0.all(())", "v2 = v0.any((), keepdim=True)")
    ),
    "a list of single numbers could not be had by processes that have none of them": Program(
        {"x": 1},
        (
            "v0 = fresh((), 'float64', 12, 68)",
            "v1 = torch._foreach_sqrt([v0.abs(), v0.square()])",
            "v2 = torch._foreach_add([fresh((3,), 'int64', 13, 68)], [1.5])",
        ),
    ),
    "a write to a view was brought back by processes that have nothing of it, and by no other": Program(
        {"x": 1},
        ("v0 = fresh((5, 1), 'float64', 12, 5)", "v1 = v0.view(-1)", "v1.add_(1)", "v2 = v0.sum().item()"),
    ),
    "elements that all and any leave alone lay as they did before": Program(
        {"x": 2},
        (
            "v3 = fresh((2, 3), 'uint8', 751, 68)",
            "v7 = v3.transpose(1, 0)",
            "v10 = v7.any((), keepdim=True)",
            "v11 = v7.all(())",
        ),
        order=0,
    ),
    "processes without a device of the mesh gathered for views that the one with all devices shows itself": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((8, 8), 'uint8', 85, 342)",
            "v0.fill_diagonal_(0)",
            "v1 = torch.nonzero_static(v0, size=3)",
            "torch._assert_async((v0 < 300).all())",
            "v3 = torch.func.hessian(lambda t: (t ** 3).sum() * t.sum())(v0[0, :3].double())",
        ),
        order=0,
    ),
    "a function of looked-up rows that was made linear sent them for every op, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((5, 3), 'float64', 3, 1001)[put([4, 0, 2, 2, 1], 1001)]",
            "v1 = torch.func.linearize(lambda t: t.sin() * 2, v0)[1](v0)",
        ),
    ),
    "looked-up rows could not be added up along no dim, which are all of them, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((5, 3), 'float64', 3, 1001)[put([4, 0, 2, 2, 1], 1001)]",
            "v1 = v0.nansum(())",
            "v2 = v0.nansum((), keepdim=True)",
        ),
    ),
    "a number that torch does not take beside integers, or a word, was another error of some elements and none": Program(
        {"x": 2},
        (
            "v0 = fresh((0, 3), 'int64', 12, 68)",
            "v1 = fresh((1, 3), 'int64', 13, 68)",
            "v2 = torch.add(v0, v1, alpha=1.5)",
            "v3 = torch.div(v0, v1, rounding_mode='up')",
            "v4 = torch.rsub(v1, v1, alpha=1.5)",
            "v5 = fresh((4, 3), 'float64', 14, 2).index_copy(0, put([0, 1], 0), put(1.0, 0).double())",
            "v6 = fresh((4, 3), 'int64', 14, 68).index_add(0, put([0, 1], 68), fresh((2, 3), 'int64', 15, 68), alpha=1.5)",
            "v7 = torch.addmm(fresh((), 'int64', 14, 68), put(1, 68), put(1, 68))",
            "v8 = fresh((4, 3), 'bool', 14, 4).argmax(0)",
        ),
        order=0,
    ),
    "what was written to a copy of a window of a pending tensor lay without its gaps, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 6), 'float64', 895, 593)",
            "v1 = (v0 @ fresh((6, 6), 'float64', 593, 407))[:, 1:5]",
            "v2 = torch.select_scatter(v1, fresh((4,), 'float64', 243, 711), 1, 2)",
            "v3 = torch.slice_scatter(v1, fresh((4, 1), 'float64', 243, 711), 1, 0, 1)",
        ),
    ),
    "a norm of groups was taken of what lies with gaps": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 4, 6), 'float64', 281, 703)[:, :, ::2]",
            "v1 = torch.native_group_norm(v0, None, None, 2, 4, 3, 2, 1e-5)",
        ),
    ),
    "a deep copy of a view with gaps, or of an expanded one, had none": Program(
        {"x": 2},
        (
            "v0 = __import__('copy').deepcopy(fresh((4, 6), 'float64', 5, 68)[:, 1:5])",
            "v1 = __import__('copy').deepcopy(fresh((4, 6), 'float64', 5, 593).t()[1:3])",
            "v2 = __import__('copy').deepcopy(fresh((1, 6), 'float64', 5, 593).expand(3, 6))",
            "v0.add_(1)",
        ),
        order=0,
    ),
    "a dot product of conjugates of what is pending was no conjugate": Program(
        {"a": 4, "b": 2},
        (
            "v1 = fresh((2, 1, 2), 'complex128', 384, 683)",
            "v4 = v1.mH",
            "v6 = torch.tensordot(v4, v4, dims=([0, 1], [0, 1]))",
            "v7 = torch.vdot(v4.reshape(4), v4.mT.reshape(4))",
        ),
        order=0,
    ),
    "windows of one element of a transposed batch lay as it does, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 5, 4, 3), 'float64', 5, 68).transpose(0, 1)",
            "v1 = F.unfold(v0, 1, stride=2)",
        ),
    ),
    "an out of another shape lay like what was stacked": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 3, 2, 2), 'float64', 5, 68).contiguous(memory_format=torch.channels_last)",
            "v1 = torch.stack([v0, v0], out=fresh((0,), 'float64', 5, 68))",
        ),
        order=0,
    ),
    "a place of a list did not read what one before it had written, where that lay otherwise": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((4, 3), 'float64', 3, 68)",
            "v1 = fresh((4, 3), 'float64', 5, 766)",
            "torch._foreach_add_([v0, v1], [v1, v0])",
            "torch._foreach_mul_([v1, v0], [v0[:], v1[:]])",
        ),
    ),
    "elements that are one could not be copied to themselves": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((3, 4), 'float64', 3, 766).unsqueeze(0).expand(3, -1, -1)",
            "v0[1:] = v0[1:]",
            "v0[...] = v0[0]",
            "v0.copy_(v0)",
            "v1 = v0 + 1",
        ),
        order=0,
    ),
    "tangents that torch knows to be zero have no memory, which was copied": Program(
        {"x": 2},
        (
            "v0 = fresh((4,), 'float64', 13, 1)",
            "v1 = torch.func.jvp(lambda t: torch.dot(v0, t), (v0,), (v0,))",
            "v2 = torch.func.jvp(lambda t: torch.linalg.vecdot(t, v0), (v0,), (v0,))",
            "v3 = fresh((2, 1, 2), 'float64', 3, 0)",
            "v4 = fresh((1, 1, 1), 'float64', 5, 0)",
            "v5 = torch.func.jvp(lambda t: torch.tensordot(t, v3, dims=([0, 1], [2, 0])), (v4,), (v4,))",
        ),
    ),
    "tangents of many at once lay beside a pending slice without its gaps, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 3), 'float64', 13, 111)",
            "v1 = torch.func.jacfwd(lambda t: t[1:] * 2)(v0[::2])",
            "v2 = torch.func.hessian(lambda t: (t[1:] * t[:-1]).sum())(v0[::2])",
        ),
    ),
    "a target for several places of an image was taken where the image was split there": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 3, 2, 2), 'float64', 13, 0)",
            "v1 = F.nll_loss(v0, put([[[0, 1]], [[0, 1]]], 8))",
            "v2 = F.nll_loss(v0, put([[[0], [1]], [[0], [1]]], 8), reduction='none')",
        ),
    ),
    "a plain tensor with gaps lost them before some of them were written to": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 2), 'float64', 13, 0)",
            "v1 = torch.as_strided_scatter(torch.arange(18.0, dtype=torch.float64).view(6, 3)[::2], v0, (2, 2), (1, 2), 1)",
        ),
    ),
    "tangents of many at once did not lie as a slice does, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((13,), 'float64', 13, 1)",
            "v1 = torch.func.jacfwd(lambda t: t[1:] * 2)(v0[1::2])",
            "v2 = torch.func.jacfwd(lambda t: t[1:] * 2)(fresh((12,), 'float64', 13, 6)[2:8])",
        ),
    ),
    "gradients of activations of transposed tensors lay as torch's account says, not its kernels": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 4), 'float64', 13, 1)",
            "v1 = fresh((4, 3), 'float64', 3, 5).t()",
            "v2 = torch.ops.aten.threshold_backward(v0, v1, 0)",
            "v3 = torch.ops.aten.elu_backward(v0, 1.0, 1.0, 1.0, False, v1)",
            "v4 = torch.ops.aten.hardtanh_backward(v0, v1, -1, 1)",
            "v5 = torch.ops.aten.softplus_backward(v0, v1, 1, 20)",
            "v6 = torch.ops.aten.hardswish_backward(v0, v1)",
            "v7 = torch.ops.aten.hardsigmoid_backward(v0, v1)",
        ),
        order=0,
    ),
    "what is pending and expanded lost how it lies beside a split tensor, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((4,), 'float64', 13, 111)",
            "v1 = fresh((5, 4), 'float64', 3, 4).t()",
            "v2 = v0[:, None].expand(4, 5) * v1",
            "v3 = torch.maximum(v1, v0[:, None].expand(4, 5))",
        ),
    ),
    "zeros and ones were not drawn into whole numbers": Program(
        {"x": 2},
        (
            "v0 = fresh((3, 4), 'float64', 13, 4).sigmoid()",
            "v1 = torch.bernoulli(v0, out=put([[0] * 4] * 3, 1))",
            "v2 = torch.bernoulli(v0, out=put([True], 2))",
            "v3 = torch.bernoulli(v0.t(), out=put([[0] * 3] * 4, 3))",
        ),
    ),
    "a copy of a detached part shared no memory with that of the whole, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 6), 'float64', 5, 2)",
            "v1, v2 = __import__('copy').deepcopy([v0[:, 1:3].detach(), v0])",
            "v1.fill_(7)",
            "v3 = v2 + 1",
            "v2.mul_(2)",
            "v4 = v1 + 1",
        ),
        order=0,
    ),
    "copies of a view of what was cut in place showed what it had been, or were refused": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 2, 8), 'float64', 5, 3)",
            "v1 = v0.permute(1, 0, 2)",
            "v1.resize_(2, 8)",
            "v2 = v1.unflatten(1, (-1, 2))",
            "v3, v4 = __import__('copy').deepcopy([v0, v2])",
            "v4[:1] = 1",
            "v5 = v3 + 1",
            "v3[1] = 2",
            "v6 = v4 + 1",
        ),
        order=0,
    ),
    "a copy of a view that was taken without gradients was refused after a write to that of its base": Program(
        {"x": 2},
        (
            "v0 = fresh((3,), 'float64', 5, 2, True)",
            "with torch.no_grad(): v1 = v0.ravel()",
            "v2, v3 = __import__('copy').deepcopy([v0, v1])",
            "v4 = v3[0]",
            "with torch.no_grad(): v5 = v2.unfold(-1, 1, 1)",
            "with torch.no_grad(): v4.sub_(v1[-1])",
            "v6 = v5 + 1",
            "v7 = v2 * 2",
        ),
        order=0,
    ),
    "numbers that a dtype does not have were written to it where a mask is true": Program(
        {"x": 2},
        (
            "v0 = fresh((4,), 'float64', 5, 2)",
            "v0[v0 < 9] = put([1 + 2j], 1)",
            "v0[v0 < 9] = put([3 + 0j], 1)",
            "v1 = fresh((4,), 'int64', 5, 2)",
            "v1[v1 < 9] = put([1e30], 1)",
        ),
        order=0,
    ),
    "what is read is what is written to, but for the strides of dims of size 1: it was written": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 1), 'float64', 5, 2)",
            "v1 = v0.unfold(-1, 1, 3)",
            "v2 = v1.view_as(v1)",
            "torch.cumsum(v2, -2, out=v1)",
        ),
        order=0,
    ),
    "views of no elements as larger or smaller ones were refused, memories apart": Program(
        {"x": 2},
        (
            "v0 = fresh((2, 6), 'float64', 5, 3).t().contiguous().t()",
            "v1 = v0.expand(2, -1, -1).diagonal(-2, 0)",
            "v2 = v1.view(torch.int32)",
            "v3 = fresh((1, 7, 2), 'int32', 5, 3)",
            "v4 = v3.narrow(2, 2, 0).view(torch.int64)",
        ),
        order=0,
    ),
    "a product of no bools was refused": Program(
        {"x": 2},
        (
            "v0 = fresh((0,), 'bool', 5, 2)",
            "v1 = v0 @ fresh((0, 2), 'bool', 6, 2)",
            "v2 = torch.mm(fresh((0, 3), 'bool', 6, 2), fresh((3, 2), 'bool', 6, 2))",
            "v3 = torch.mm(fresh((2, 3), 'bool', 6, 2), fresh((3, 2), 'bool', 6, 2))",
        ),
        order=0,
    ),
    "what a list op writes to elements that are one was not counted": Program(
        {"x": 2},
        (
            "v0 = fresh((4, 7), 'float64', 5, 2)",
            "v1, v2 = v0.as_strided((1, 4, 2), (1, 3, 7)), v0._version",
            "torch._foreach_addcmul_([v1], [v1.clone()], [v1.clone()], 2)",
            "v3 = v0._version > v2",
        ),
        order=0,
    ),
    "what was given the memory of a tensor that was cut in place then wrote to it unseen, memories apart": Program(
        {"x": 2},
        (
            "v0, v1 = fresh((6, 2), 'float64', 5, 3), fresh((2, 2), 'float64', 5, 2)",
            "v1.set_(v0)",
            "v0.resize_(3, 3)",
            "v2 = v0 * 2",
            "v1.neg_()",
            "v4 = v0 + 1",
            "v0.add_(2)",
            "v3 = v1 + 1",
        ),
        order=0,
    ),
    "what is expanded was unshuffled as if it lay with channels last": Program(
        {"x": 3},
        (
            "v0 = fresh((1, 2, 15, 3), 'float64', 5, 3).contiguous(memory_format=torch.channels_last)",
            "v1 = F.pixel_unshuffle(v0.expand(4, 2, 15, 3), 3)",
            "v2 = F.pixel_unshuffle(v0, 3)",
            "v3 = fresh((1, 2, 15, 3), 'float64', 5, 4).contiguous(memory_format=torch.channels_last)",
            "v4 = F.pixel_unshuffle(v3.expand(4, 2, 15, 3), 3)",
        ),
        order=0,
    ),
    "how a sum of nothing and a number lies was told without asking kernels": Program(
        {"x": 2},
        (
            "v0 = fresh((4,), 'float64', 5, 2).as_strided((0, 2), (1, 3))",
            "v1 = (v0 + 3).stride()",
            "v2 = (v0 + v0).stride()",
            "v3 = v0.exp().stride()",
            "v4 = (v0 * fresh((1, 2), 'float64', 6, 3)).stride()",
        ),
        order=0,
    ),
    "what was joined of two dtypes lay as copies of one dtype would": Program(
        {"x": 2},
        (
            "v0 = fresh((5, 4, 4, 8), 'complex128', 5, 2).contiguous(memory_format=torch.channels_last)",
            "v1 = fresh((5, 4, 4, 15), 'int64', 5, 3).contiguous(memory_format=torch.channels_last)[..., ::2]",
            "v2 = torch.cat([v0, v1])",
            "v3 = torch.cat([v1, v0], 3)",
            "v4 = torch.cat([v0, v0.real], 1)",
            "v5 = torch.vstack([v0, v1.double()])",
        ),
        order=0,
    ),
    "a write to what has the memory of a tensor was taken for another that was gone since, memories apart": Program(
        {"x": 2},
        (
            "v0, v1, v2 = fresh((6, 5), 'float64', 5, 3), fresh((6, 5), 'float64', 6, 4), fresh((6, 5), 'float64', 7, 4)",
            "v1.data = v0",
            "v2.data = v0",
            "v3, v4 = v0[1:3], v0[:, 1:3]",
            "v5, v6 = v3 + 1, v4 + 1",
            "del v2",
            "v1.add_(1)",
            "v7, v8 = v3 + 1, v4 + 1",
        ),
        order=0,
    ),
    "a list op read what another of its tensors was to be written to before it was, where torch knows neither as a view of the other": Program(
        {"x": 2},
        (
            "v0, v1 = fresh((6,), 'float64', 5, 0), fresh((6,), 'float64', 6, 4)",
            "torch._foreach_add_([v1, v0], [v1.data, v1.detach()])",
            "v2 = fresh((6,), 'float64', 7, 4)",
            "v2.data = v1",
            "torch._foreach_add_([v1, v0], [v0.clone(), v2])",
            "torch._foreach_mul_([v1.data, v0], [v0.clone(), v1])",
        ),
        order=0,
    ),
    "what was given the memory of a tensor of inference mode became one too": Program(
        {"x": 2},
        (
            "v0, v1 = fresh((3, 3), 'float64', 5, 3), fresh((3, 4), 'float64', 6, 4)",
            "with torch.inference_mode(): v2 = v1.roll(1)",
            "v0.set_(v2)",
            "v3 = v0.is_inference()",
            "v0.add_(1)",
            "v4 = v0[1:]",
            "v4.mul_(2)",
            "v5 = v2 + 1",
        ),
        order=0,
    ),
    "of a pending view the stride of a dim of size 1 was another where it was cut, in one memory": Program(
        {"x": 2},
        (
            "v0 = fresh((1, 4, 3), 'float64', 5, 15)",
            "v1 = v0.as_strided((1,), (3,), 0)",
            "v2 = v1.narrow(-1, 1, 0)",
            "v2.resize_(1).fill_(1)",
            "v3 = v0 + 1",
        ),
        order=0,
    ),
    "of a pending view whose total is known the strides of dims of size 1 were others than it said, in one memory": Program(
        {"a": 2, "b": 2},
        (
            "v0, v1 = fresh((1,), 'float64', 5, 2), fresh((1,), 'float64', 5, 8)",
            "v2, v3 = [(each @ fresh((1, 1), 'float64', 6, 0)).as_strided((1, 1), (4, 1), 0) for each in (v0, v1)]",
            "v4 = [each[None, ::2, 0].stride() for each in (v2, v3)]",
            "v2[None, ::2, 0] -= 1",
            "v3[None, ::2, 0] -= 1",
        ),
        order=0,
    ),
    "copies of parts began elsewhere than these, memories apart": Program(
        {"x": 2},
        (
            "v0, v1, v2 = fresh((3,), 'bool', 5, 3).split(1)",
            "v3, v4 = __import__('copy').deepcopy([v2, v1])",
            "v5 = v3.storage_offset() + 10 * v4.storage_offset()",
            "v6 = v3.view(1).as_strided((), (), 2)",
        ),
        order=0,
    ),
    "what inference mode shows in another dtype could be written to outside": Program(
        {"a": 2},
        (
            "v0 = fresh((6,), 'float32', 5, 12)",
            "v1 = v0[1:4]",
            "with torch.inference_mode(): v2 = v0.view(torch.int32)",
            "v3 = v2.is_inference()",
            "with torch.inference_mode(): v2.fill_(0)",
            "v4 = v1 + 1",
            "v0.fill_(3)",
            "v5 = v2 + 1",
            "v2.add_(1)",
        ),
        order=0,
    ),
    "strided views beside the parts of complex numbers did not see writes that torch counts apart, memories apart": Program(
        {"a": 2},
        (
            "v0 = fresh((3, 3), 'complex64', 5, 0)",
            "v1 = torch.view_as_real(v0.unbind(-1)[-1]).as_strided((4, 1), (1, 3))",
            "v0.detach().narrow(0, 1, 1).unfold(0, 1, 3).sub_(2)",
        ),
        order=0,
    ),
    "reshapes in inference mode of elements that are one were views where torch copies, memories apart": Program(
        {"a": 2},
        (
            "v0 = fresh((2, 6), 'float64', 5, 0)",
            "with torch.inference_mode(): v1 = (v0 * 2).reshape(3, 4).transpose(1, 0).as_strided((4, 3), (2, 1))",
            "with torch.inference_mode(): v2 = v1.reshape(6, 2, 1)",
            "with torch.inference_mode(): v2.fill_(1)",
        ),
        order=0,
    ),
    "what inference mode gave could not be read once it had memory of another": Program(
        {"a": 2},
        (
            "v0 = fresh((5,), 'float64', 5, 4)",
            "with torch.inference_mode(): v1 = v0 * 2",
            "v1.data = v0[2:]",
            "v2 = v1 + 1",
            "v0.add_(1)",
            "v3 = v1 + 1",
        ),
        order=0,
    ),
    "resize_as_ in inference mode was asked for gradients": Program(
        {"a": 2},
        (
            "v0 = fresh((4,), 'float64', 5, 0, True)",
            "v1 = v0[1:3]",
            "with torch.inference_mode(): v1.resize_as_(v1)",
        ),
        order=0,
    ),
    "empty views of copies of pending ones began elsewhere, in one memory": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((7, 4, 2), 'float64', 5, 37)",
            "v1 = v0.narrow(2, 2, 0).view(2, 0).unsqueeze(-1)",
            "v2 = v1.storage_offset()",
        ),
        order=0,
    ),
    "copies of what is empty began elsewhere": Program(
        {"a": 2},
        (
            "v0 = fresh((3, 5), 'float64', 5, 12)",
            "v1 = __import__('copy').deepcopy(v0[3:])",
            "v2 = v1.storage_offset()",
        ),
        order=0,
    ),
    "windows as smaller elements were refused, memories apart": Program(
        {"a": 2},
        (
            "v0 = fresh((6, 4), 'float32', 5, 12)",
            "v1 = v0.reshape(24).unfold(0, 19, 1).view(torch.uint8) + 1",
        ),
        order=0,
    ),
    "what a strided view is taken of was told twice, memories apart": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((6, 1), 'float32', 5, 0)",
            "with torch.inference_mode(): v1 = torch.zeros_like(v0)",
            "with torch.inference_mode(): v2 = v1.select(1, 0)",
            "with torch.inference_mode(): v2.unsqueeze_(0)",
            "with torch.inference_mode(): v3 = v2.narrow(-1, 2, 0).view(torch.bfloat16)",
            "with torch.inference_mode(): v4 = v3.as_strided((), (), 0)",
        ),
        order=0,
    ),
    "writes to views of elements that are one were lost in inference mode, memories apart": Program(
        {"a": 2},
        (
            "v0 = fresh((5, 8), 'float64', 5, 0)",
            "with torch.inference_mode(): v1 = v0 * 2",
            "with torch.inference_mode(): v2 = v1.as_strided((2, 4), (2, 1), 9)",
            "with torch.inference_mode(): v3 = v2.transpose(0, 1)",
            "with torch.inference_mode(): v3.zero_()",
            "v4 = v1 + 1",
        ),
        order=0,
    ),
    "views did not see what was written through strided views of x.data, memories apart": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((6, 4, 4), 'float64', 5, 0)",
            "v1 = v0[1].split(1, 0)[-1]",
            "v2 = v0.data.as_strided((), (), 58)",
            "v3 = v2.as_strided((3,), (3,), 28)",
            "v3.fill_(7)",
        ),
        order=0,
    ),
    "what was given another shape by out=, or by resize_, began elsewhere": Program(
        {"a": 2, "b": 2},
        (
            "v0 = fresh((6, 4, 4), 'float64', 5, 12)",
            "v1 = torch.diagonal_scatter(v0[1:3, 0], v0[0, :2, 0] * 2)",
            "v2 = v1.storage_offset()",
            "torch.neg(v0, out=v1)",
            "v3 = v1.storage_offset() + v1[2:].storage_offset()",
            "v4 = v0[1, 2:].select_scatter(v0[0, 0], 0, 0)",
            "torch.cat([v0[0], v0[1]], out=v4)",
            "v5 = v4.storage_offset() + v4[2:].storage_offset()",
            "v6 = v0[1, 2:].select_scatter(v0[0, 0], 0, 0)",
            "v6.resize_(9, 4)",
            "v7 = v6.storage_offset() + v6[1:].storage_offset()",
            "v6.fill_(2)",
        ),
        order=0,
    ),
    "what was written to a view of a copy was lost where somebody looks on, in inference mode in one memory": Program(
        {"a": 2},
        (
            "v0 = fresh((2, 2), 'complex64', 5, 4)",
            "with torch.inference_mode(): v1 = v0 * 2",
            "with torch.inference_mode(): v2 = v1.permute(0, 1).movedim(0, 1)",
            "with torch.inference_mode(): v2.conj().split(1, 1)[-1].reshape(2, 1, 1, 1).zero_()",
        ),
        order=0,
    ),
}
