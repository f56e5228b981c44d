// Every way in which an operator's operands may lie on a mesh without having to move: what the rule
// engine calls an assignment, found by brute force.
#ifndef DTENSOR_TESTING_OP_ASSIGNMENTS_H_
#define DTENSOR_TESTING_OP_ASSIGNMENTS_H_

#include <vector>

#include "dtensor/rules/op_rule.h"

namespace dtensor {

// Letters over axes: each mesh axis splits no letter or one, and perhaps one that is streamed past
// it, or to which it is sent; contiguously, zigzag or in dealt blocks of 1; two axes on one letter
// in both orders. Then, on axes that split nothing, every subset of the operands is Partial, by
// each op. Those are kept in which every operand stays as it is.
std::vector<RuleAssignment> LegalAssignments(absl::string_view op, const BoundRule& rule,
                                             RuleLinearity linearity, const DeviceMesh& mesh);

}  // namespace dtensor

#endif  // DTENSOR_TESTING_OP_ASSIGNMENTS_H_
