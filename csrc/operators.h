// What the shim knows of an operator: only its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "core.h"

namespace tpu {

struct Argument {
  enum Kind : uint8_t { kPlain, kIntList, kDoubleList, kBoolList, kValueList } kind = kPlain;
  bool is_scalar = false;
  bool mutated = false;
  bool is_out = false;
  bool is_index_list = false;  // Tensor?[]: indices, which may live on the host
};

struct Return {
  enum Kind : uint8_t { kArgument, kTensor, kTensorList, kBool, kInt, kDouble } kind = kTensor;
  uint8_t argument = 0;  // for kArgument: the written argument that is returned
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& operator_handle);

  c10::OperatorHandle handle;
  std::optional<c10::OperatorHandle> functional;
  c10::SmallVector<Argument, 8> arguments;
  c10::SmallVector<Return, 4> returns;
  uint32_t id = 0;
  uint32_t fresh_scalars_and_tensors = 0;  // returns that take exactly one output
  bool returns_view = false;
  bool mutates = false;
};

// Never freed; made on first use. Thread safe.
const Operator& operator_for(const c10::OperatorHandle& handle);

// Every operator with this qualified name ("aten::add"), whatever its overload.
c10::SmallVector<c10::OperatorHandle, 8> overloads_of(const std::string& name);

// The operator that computes what `handle` writes: foo_ -> foo, foo.out -> foo, foo -> foo_functional. Overloads are
// matched by argument types, since their names follow no rule (normal_ -> normal_functional, bernoulli_.float ->
// bernoulli.p).
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& handle);

// A call's arguments as the core sees them; borrows from the stack.
class Call {
 public:
  Call(const Operator& op, c10::ArrayRef<c10::IValue> arguments);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  TpuCall c{};

 private:
  template <class T>
  T* take(size_t count);
  void convert(const c10::IValue& value, const Argument& argument, TpuValue& out);
  void convert_list(const c10::IValue& value, const Argument& argument, TpuValue& out);

  alignas(16) char inline_[3072];
  size_t used_ = 0;
  c10::SmallVector<std::unique_ptr<char[]>, 1> overflow_;
};

// Tensors of one argument in slot order, for f(const at::Tensor&); undefined tensors have no slot.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isList()) {
    for (const auto& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) f(element.toTensor());
    }
  }
}

// Runs the operator, and its functional form, on Meta tensors and asks the core for a plan.
void build_plan(const Operator& op, const TpuCall& call, c10::ArrayRef<c10::IValue> arguments, TpuPlanInfo& info);

}  // namespace tpu
