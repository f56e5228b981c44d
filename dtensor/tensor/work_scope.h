// Work scopes: for which part of a program a rank works, told to who observes it.
//
// A part is known by its address: a module is one while it is called (module.h). An operator that
// is recorded remembers the scope, and Backward enters it again when it comes by; what a gather
// group moves belongs to the group's scope, though it is moved ahead of time (gather_group.h).
//
//   class Observer : public ScopeObserver { void Enter(const void* scope) override; ... };
//   context.set_scope_observer(&observer);
//
// An observer reads the counters that there are (Communicator::traffic, Device::memory) where the
// scope changes; so what lies between two changes is the work of one scope. A trace
// (docs/tracing.md) and a Context's notices say a scope's path, which it has since it was entered
// with one. Where nobody wants to know there are no scopes: that costs a test of a bool for each
// call of a module, each operator that Backward visits, and each exchange of gathered leaves or
// their gradients.
#ifndef DTENSOR_TENSOR_WORK_SCOPE_H_
#define DTENSOR_TENSOR_WORK_SCOPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"
#include "dtensor/trace/trace_recorder.h"

namespace DTENSOR_EXPORT dtensor {

class ScopeObserver {
 public:
  virtual ~ScopeObserver() = default;
  // The work from here on is that of `scope`; null: of no part. Called where that changes, on the
  // rank's thread. It may not call operators.
  virtual void Enter(const void* scope) = 0;
};

// Makes `scope` the Context's while it lives, if somebody observes.
class WorkScope {
 public:
  WorkScope(Context& context, const void* scope) {
    if (context.notes_scopes()) Enter(context, scope);
  }
  // Of a call of a module.
  WorkScope(Context& context, const void* scope, absl::string_view path) {
    if (context.notes_scopes()) EnterModule(context, scope, path);
  }
  ~WorkScope() {
    if (context_ != nullptr) Leave();
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  void Enter(Context& context, const void* scope) {
    context_ = &context;
    before_ = context.scope();
    context.set_scope(scope);
  }
  void EnterModule(Context& context, const void* scope, absl::string_view path) {
    context.NameScope(scope, path);
    Enter(context, scope);
    if (context.tracer() != nullptr) span_ = context.tracer()->Open(TraceKind::kModule, path);
  }
  void Leave() {
    if (context_->tracer() != nullptr) context_->tracer()->Close(span_);
    context_->set_scope(before_);
  }
  Context* context_ = nullptr;
  int64_t span_ = -1;  // in the trace
  const void* before_ = nullptr;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_WORK_SCOPE_H_
