// What the shim knows of an operator: only its schema, as the core reads it.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "core.h"

namespace tpu {

// No backend uses it: its table holds the kernels that serve every backend.
constexpr auto kUnusedKey = c10::DispatchKey::IPU;

// The kernel that makes an operator structured serves every backend without one of its own.
inline bool is_structured(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         !handle.hasKernelForDispatchKey(kUnusedKey);
}

struct Operator : abi::Operator {
  explicit Operator(const c10::OperatorHandle& operator_handle);

  c10::OperatorHandle handle;
  std::optional<c10::OperatorHandle> functional_form;
};

// Made on first use, never freed; forgotten when PyTorch removes the operator. Thread safe.
const Operator& operator_for(const c10::OperatorHandle& handle);

// Makes every operator of a namespace known to the core.
void declare_operators(std::string_view ns);

std::optional<c10::OperatorHandle> find_operator(const char* name);

// Asks the core for a plan, with the metadata that the operator and its functional form give. False when out= arguments
// had to be resized instead: the call is another one now.
bool build_plan(const Operator& op, const abi::Call& call, c10::ArrayRef<c10::IValue> arguments, abi::PlanInfo& info);

// f(tensor) for the defined tensors of one argument.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor() && value.toTensor().defined()) f(value.toTensor());
  if (value.isList()) {
    for (const auto& element : value.toListRef()) for_each_tensor(element, f);
  }
}

}  // namespace tpu
