// The text of bundles.json: several bundles of one model in folders, one for each format, see flashload/bundle_set.py.
#ifndef EDGEKIT_BUNDLE_SET_H
#define EDGEKIT_BUNDLE_SET_H

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "manifest_reader.h"

namespace edgekit {

struct BundleSetMember {
  std::string path;    // of its folder
  std::string format;  // of its programs
  // System -> the first version that runs it; a system that is not named runs it in any version.
  std::vector<std::pair<std::string, std::string>> minimum_os;
  std::vector<std::string> chips;  // that its programs were compiled for; none: systems compile them, or need not
};

struct BundleSet {
  std::vector<BundleSetMember> members;  // the first that runs is to be taken: those for the newest systems first
  std::vector<BundleFile> files;         // beside them, and their manifests

  // What it says of a file; null where it does not list it.
  const BundleFile *find(std::string_view name) const noexcept;
};

constexpr const char *kBundleSetName = "bundles.json";
constexpr std::uint64_t kMaxBundleSetBytes = std::uint64_t{1} << 20;

// `where` names the text in messages. Throws Error (EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION).
BundleSet parse_bundle_set(std::string_view text, const std::string &where);

// What runs bundles.
struct BundleRunner {
  std::vector<std::string> formats;  // that it runs; none: any
  std::string system, version;       // such as "ios" and "26.4"; an empty system: any version will do
  std::string chip;                  // such as "sm8650"; empty: nobody knows

  bool has_format(std::string_view format) const;
};

// Whether a chip is the one of that name, or a variant of it, which has a suffix: "sm8650-ac".
bool is_chip(std::string_view chip, std::string_view name);

// "a, b or c", `last` being "or".
std::string joined(const std::vector<std::string> &names, const char *last);

// The first member that `runner` runs, those last that were compiled for other chips than its own. Throws Error:
// EK_UNSUPPORTED_BUNDLE where there is none, with what keeps each from it; EK_INVALID_ARGUMENT for a version that is none.
// `is_own`: whoever reads the message exports bundles; else they come from somebody else.
const BundleSetMember &choose_member(const BundleSet &set, const BundleRunner &runner, const std::string &where,
                                     bool is_own = true);

// What the set says of a member's manifest. Throws Error (EK_MALFORMED_FILE) where it does not list it.
const BundleFile &manifest_of(const BundleSet &set, const BundleSetMember &member, const std::string &where);

}  // namespace edgekit

#endif  // EDGEKIT_BUNDLE_SET_H
