// Operators with a kernel of their own: allocation, views, storage surgery, copies.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>

#include "core.h"

namespace tpu {
namespace {

using at::IntArrayRef, at::Tensor;
template <class T>
using Opt = std::optional<T>;

int32_t factory_device(IntArrayRef sizes, Opt<at::Layout> layout, Opt<at::Device> device, Opt<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::kStrided,
                              "tpu: only strided tensors are supported, got layout ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  at::detail::check_size_nonnegative(sizes);
  return device_index(c10::device_or_default(device));
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, Opt<at::ScalarType> dtype, Opt<at::Layout> layout,
                     Opt<at::Device> device, Opt<bool> pin_memory) {
  return new_tensor(sizes, strides, c10::dtype_or_default(dtype), factory_device(sizes, layout, device, pin_memory));
}

Tensor empty(IntArrayRef sizes, Opt<at::ScalarType> dtype, Opt<at::Layout> layout, Opt<at::Device> device,
             Opt<bool> pin_memory, Opt<at::MemoryFormat> memory_format) {
  auto tensor = empty_strided(sizes, c10::contiguous_strides(sizes), dtype, layout, device, pin_memory);
  const auto format = memory_format.value_or(at::MemoryFormat::Contiguous);
  if (format != at::MemoryFormat::Contiguous) tensor.unsafeGetTensorImpl()->empty_tensor_restride(format);
  return tensor;
}

// An immutable tensor of zeros without memory, used by forward-mode differentiation.
Tensor efficient_zero_tensor(IntArrayRef sizes, Opt<at::ScalarType> dtype, Opt<at::Layout> layout,
                             Opt<at::Device> device, Opt<bool> pin_memory) {
  at::native::ZeroTensorAllocator no_memory(device_at(factory_device(sizes, layout, device, pin_memory)));
  const c10::DispatchKeySet keys({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor});
  return Tensor(at::detail::empty_generic(sizes, &no_memory, keys, c10::dtype_or_default(dtype), std::nullopt));
}

const Tensor& resize_(const Tensor& self, IntArrayRef sizes, Opt<at::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(sizes);
  resize_tensor(self.unsafeGetTensorImpl(), sizes, nullptr);
  if (memory_format) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return self;
}

Tensor& set_view_(Tensor& self, at::Storage source, int64_t offset, IntArrayRef sizes, IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(source), offset, sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize_tensor(self.unsafeGetTensorImpl(), sizes, strides.data() ? &strides : nullptr);
  return self;
}

Tensor& set_empty_(Tensor& self) {
  at::Storage none(at::Storage::use_byte_size_t(), 0, new_storage(0, self.device().index()), allocator(), true);
  return set_view_(self, std::move(none), 0, {0}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  core->record_stream(self.storage().data_ptr().get_context(), stream.id());
}

void release_tensor(void* keepalive) { delete static_cast<Tensor*>(keepalive); }

Tensor dense_host_tensor(const Tensor& like, at::ScalarType dtype, bool contiguous) {
  if (contiguous) return Tensor(at::detail::empty_cpu(like.sizes(), dtype));
  const auto strides = at::infer_dense_strides(like.sizes(), like.strides());
  return Tensor(at::detail::empty_strided_cpu(like.sizes(), strides, dtype));
}

// The core copies bytes: host memory has the device tensor's dtype, order in memory, and conjugate and negative bits.
void copy_host_to_device(const Tensor& src, const Tensor& dst, bool non_blocking) {
  const bool direct = src.scalar_type() == dst.scalar_type() && src.sizes() == dst.sizes() &&
                      src.strides() == IntArrayRef(at::infer_dense_strides(dst.sizes(), dst.strides())) &&
                      src.is_conj() == dst.is_conj() && src.is_neg() == dst.is_neg();
  const Tensor host = direct ? src : dense_host_tensor(dst, dst.scalar_type(), false);
  if (!direct) {
    host._set_conj(dst.is_conj());
    host._set_neg(dst.is_neg());
    host.copy_(src);
  }
  const bool unshared = !direct || (non_blocking && core->is_pinned(host.const_data_ptr()));
  auto to = describe(dst), from = describe(host);
  to.flags = from.flags = 0;
  check(core->copy_from_host(&to, &from, unshared, new Tensor(host), release_tensor));
}

void copy_device_to_host(const Tensor& src, const Tensor& dst, bool non_blocking) {
  const bool dense = src.is_non_overlapping_and_dense();
  const bool direct = dense && src.scalar_type() == dst.scalar_type() && src.sizes() == dst.sizes() &&
                      src.strides() == dst.strides() && !dst.is_conj() && !dst.is_neg();
  const Tensor host = direct ? dst : dense_host_tensor(src, src.scalar_type(), !dense);
  const bool asynchronous = direct && non_blocking && core->is_pinned(host.const_data_ptr());
  const auto to = describe(host), from = describe(src);
  check(core->copy_to_host(&to, &from, asynchronous, new Tensor(host), release_tensor));
  if (!direct) dst.copy_(host);
}

Tensor copy_from(const Tensor& src, const Tensor& dst, bool non_blocking) {
  if (C10_UNLIKELY(shape_only != nullptr)) return dst;
  const auto shape = at::infer_size_dimvector(dst.sizes(), src.sizes());
  TORCH_CHECK(dst.sizes() == IntArrayRef(shape), "output with shape ", dst.sizes(),
              " doesn't match the broadcast shape ", IntArrayRef(shape));
  const bool from_host = src.device().is_cpu(), to_host = dst.device().is_cpu();
  TORCH_CHECK_NOT_IMPLEMENTED((from_host || src.device().type() == kTpu) && (to_host || dst.device().type() == kTpu),
                              "tpu: cannot copy from ", src.device(), " to ", dst.device(), "; copy through the CPU");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (from_host) {
    copy_host_to_device(src, dst, non_blocking);
  } else if (to_host) {
    copy_device_to_host(src, dst, non_blocking);
  } else {
    at::assert_no_partial_overlap(dst, src);  // before expanded elements hide it
    const auto source = src.expand(dst.sizes());
    const auto to = describe(dst), from = describe(source);
    check(core->copy_on_device(&to, &from));
  }
  return dst;
}

// A result of the host takes its strides along when it does not fit.
Tensor copy_from_and_resize(const Tensor& src, const Tensor& dst) {
  if (dst.sizes() != src.sizes()) {
    const auto strides = src.strides();
    const bool kept = at::has_internal_overlap(src) != at::MemOverlap::Yes;
    resize_tensor(dst.unsafeGetTensorImpl(), src.sizes(), kept ? &strides : nullptr);
  }
  return copy_from(src, dst, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  TORCH_CHECK_NOT_IMPLEMENTED(!shape_only, "the shape of the output depends on values");
  alignas(16) char element[16] = {};
  const auto from = describe(self);
  check(core->read_scalar(&from, element));
  const Tensor host(at::detail::empty_cpu({}, self.scalar_type()));
  std::memcpy(host.mutable_data_ptr(), element, host.itemsize());
  return at::_local_scalar_dense(host);
}

}  // namespace

void register_kernels() {
  auto& m = keep_library("aten", c10::DispatchKey::PrivateUse1);
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_empty_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_view_));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  // As on the CPU: flash attention (which the core implements) where it applies, else math.
  m.impl("_fused_sdp_choice", TORCH_FN(at::native::_fused_sdp_choice_cpp));
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&at::native::_fused_sdp_choice_cpp);
  // copy_ falls through these keys but _copy_from does not: resolving a conjugate would clone, copy, and resolve again
  // without end.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor})
    keep_library("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace tpu
