// What the shim knows of an operator: only its schema.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "core.h"

namespace tpu {

// No backend uses it: its table holds the kernels that serve every backend.
constexpr auto kUnusedKey = c10::DispatchKey::IPU;

struct Argument {
  enum Kind : uint8_t { kPlain, kIntList, kDoubleList, kBoolList, kValueList } kind = kPlain;
  bool is_scalar = false, mutated = false, is_out = false;
  bool is_index_list = false;  // Tensor?[]: indices, which may live on the host
};

struct Return {
  enum Kind : uint8_t { kArgument, kTensor, kTensorList, kNumber } kind;
  uint8_t argument = 0;  // for kArgument: the written argument that is returned
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& operator_handle);

  c10::OperatorHandle handle;
  std::optional<c10::OperatorHandle> functional;  // itself when it writes nothing
  c10::SmallVector<Argument, 8> arguments;
  c10::SmallVector<Return, 4> returns;
  uint32_t id = 0, single_outputs = 0;  // single_outputs: returns that take exactly one fresh output
  bool mutates = false, has_index_list = false;
  bool writes_lists = false;  // and PyTorch can do it position by position
};

// Made on first use, never freed. Thread safe.
const Operator& operator_for(const c10::OperatorHandle& handle);

// Every operator with this qualified name ("aten::add"), whatever its overload.
c10::SmallVector<c10::OperatorHandle, 8> overloads_of(const std::string& name);

// The operator that computes what `handle` writes: foo_ -> foo, foo.out -> foo, foo -> foo_functional. Overloads are
// matched by argument types: their names follow no rule (normal_ -> normal_functional, bernoulli_.float ->
// bernoulli.p).
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& handle);

// Runs the operator, and its functional form, for metadata alone and asks the core for a plan.
void build_plan(const Operator& op, const TpuCall& call, c10::ArrayRef<c10::IValue> arguments, TpuPlanInfo& info);

// f(tensor) for the tensors of one argument in slot order; undefined tensors have no slot.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor() && value.toTensor().defined()) f(value.toTensor());
  if (value.isList()) {
    for (const auto& element : value.toListRef()) for_each_tensor(element, f);
  }
}

}  // namespace tpu
