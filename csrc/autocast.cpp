// torch.autocast("tpu"): the policy of CUDA's lists, which PyTorch keeps as macros for other devices to reuse.
#include <ATen/autocast_mode.h>

#include "core.h"

namespace tpu {
void register_autocast() {
  using at::IntArrayRef, at::Scalar, at::ScalarType, at::Tensor;  // the macros name them unqualified
  keep_library("_", c10::DispatchKey::AutocastPrivateUse1).fallback(torch::CppFunction::makeFallthrough());
  auto& m = keep_library("aten", c10::DispatchKey::AutocastPrivateUse1);
#define TPU_LOWER_PRECISION_FP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TPU_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TPU_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TPU_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TPU_LOWER_PRECISION_FP)
  AT_FORALL_FP32(TPU_FP32)
  TPU_FP32(linalg_matrix_sqrth)  // in CUDA's list, not in the macro
  AT_FORALL_FP32_SET_OPT_DTYPE(TPU_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TPU_PROMOTE)
}

}  // namespace tpu
