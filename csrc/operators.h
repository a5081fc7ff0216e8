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
  bool is_scalar, mutated, is_out;
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
  bool mutates = false, has_indices = false;
};

// Made on first use, never freed. Thread safe.
const Operator& operator_for(const c10::OperatorHandle& handle);

// Every operator with this qualified name ("aten::add"), whatever its overload.
std::vector<c10::OperatorHandle> overloads_of(const std::string& name);

// The operator that computes what `handle` writes: foo_ -> foo, foo.out -> foo, foo -> foo_functional. Overloads match
// by argument types: their names follow no rule (normal_ -> normal_functional, bernoulli_.float -> bernoulli.p).
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& handle);

// Asks the core for a plan, with the metadata that the operator and its functional form give. False when out= arguments
// had to be resized instead: the call is another one now.
bool build_plan(const Operator& op, const TpuCall& call, c10::ArrayRef<c10::IValue> arguments, TpuPlanInfo& info);

// f(tensor) for the defined tensors of one argument.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor() && value.toTensor().defined()) f(value.toTensor());
  if (value.isList()) {
    for (const auto& element : value.toListRef()) for_each_tensor(element, f);
  }
}

}  // namespace tpu
