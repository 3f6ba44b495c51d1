// Logical roles of tokens, and the order in which LogicDiff (arXiv 2603.26771) unmasks by them.
#ifndef EDGEKIT_SAMPLING_ROLES_H
#define EDGEKIT_SAMPLING_ROLES_H

#include <cstdint>
#include <vector>

namespace edgekit {

// The number of roles, in the order in which they are committed: premise, connective, derived step, conclusion, filler. The
// paper gives the order of the first four; what carries nothing can wait.
constexpr std::int64_t kRoles = 5;
constexpr const char *kRoleNames[kRoles] = {"premise", "connective", "derived", "conclusion", "filler"};

// The likeliest role of each row, from scores [rows, kRoles]; ties go to the earlier role.
std::vector<std::int64_t> likeliest_roles(const std::vector<float> &scores);

// Indices of the first `count` proposals by role, those of a role by `confidence`, ties to the lower index. A confidence of
// -infinity goes behind every role. Without roles it is most_confident().
std::vector<std::int64_t> in_logic_order(const std::vector<std::int64_t> &roles, const std::vector<double> &confidence,
                                         std::int64_t count);

}  // namespace edgekit

#endif  // EDGEKIT_SAMPLING_ROLES_H
