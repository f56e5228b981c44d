// Work scopes: tell an observer for which part of the program a rank is working, so that work can
// be attributed to modules.
//
// A scope is identified by an address: each module is a scope while it is called (module.h). A
// recorded operator remembers its scope, and Backward enters that scope again when it visits the
// operator. What a gather group communicates belongs to the group's scope, even if it is prefetched
// (gather_group.h).
//
//   class Observer : public ScopeObserver { void Enter(const void* scope) override; ... };
//   context.set_scope_observer(&observer);
//
// An observer can read counters (Communicator::traffic, Device::memory) whenever the scope changes:
// the difference between two changes is the work of one scope. A trace (docs/tracing.md) and a
// Context's notices show a scope's path, if it was ever entered with one. If nothing needs scopes,
// none are entered. Then the cost is one test of a bool for each call of a module, each operator
// that Backward visits, and each exchange of gathered leaves or their gradients.
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
  // Called on the rank's thread when the scope changes: work from now on belongs to `scope` (null:
  // to no scope). It must not call operators.
  virtual void Enter(const void* scope) = 0;
};

// Makes `scope` the Context's scope while it lives, if scopes are noted.
class WorkScope {
 public:
  WorkScope(Context& context, const void* scope) {
    if (context.notes_scopes()) Enter(context, scope);
  }
  // For a call of a module.
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
