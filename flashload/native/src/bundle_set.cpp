#include "bundle_set.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>

#include "error.h"
#include "json.h"
#include "printable.h"

namespace edgekit {
namespace {

constexpr std::int64_t kSchemaVersion = 4;
constexpr std::size_t kMostDigits = 9;
constexpr const char *kSystems[] = {"ios", "macos"};
// What to do where a set has no bundle of use.
constexpr const char *kOwn = "; export one for that";
constexpr const char *kOfOthers = "; its owner has to export one for that";

template <typename... Parts>
[[noreturn]] void malformed(const std::string &where, const Parts &...parts) {
  fail(EK_MALFORMED_FILE, where, ": ", parts..., "; copy or export the folder again");
}

// A version of a system, to be compared; false for other than numbers with dots.
bool parse_version(std::string_view text, std::vector<std::uint32_t> &numbers) {
  numbers.clear();
  while (true) {
    const std::string_view part = text.substr(0, text.find('.'));
    if (part.empty() || part.size() > kMostDigits || part.find_first_not_of("0123456789") != std::string_view::npos) return false;
    numbers.push_back(static_cast<std::uint32_t>(std::stoul(std::string(part))));
    if (part.size() == text.size()) return true;
    text.remove_prefix(part.size() + 1);
  }
}

void require_members(const Json &value, std::initializer_list<const char *> names, const char *what, const std::string &where) {
  if (value.kind() != Json::Kind::object) malformed(where, what, " is not an object");
  for (const char *name : names) {
    if (value.find(name) == nullptr) malformed(where, what, " has no ", name);
  }
  if (value.object().size() != names.size()) malformed(where, what, " has members that this edgekit does not know");
}

const std::string &text_of(const Json &value, const char *what, const std::string &where) {
  if (value.kind() != Json::Kind::string) malformed(where, what, " of a bundle is no text");
  return value.string();
}

BundleSetMember parse_member(const Json &entry, const std::string &where) {
  require_members(entry, {"path", "format", "minimum_os", "chips"}, "a bundle", where);
  BundleSetMember member{text_of(entry.at("path"), "path", where), text_of(entry.at("format"), "format", where), {}, {}};
  if (!is_inside(member.path)) malformed(where, in_quotes(member.path), " is not a plain relative path below the folder");
  if (entry.at("minimum_os").kind() != Json::Kind::object) malformed(where, "minimum_os is not an object");
  for (const auto &[system, version] : entry.at("minimum_os").object()) {
    if (std::find(std::begin(kSystems), std::end(kSystems), system) == std::end(kSystems)) {
      malformed(where, "minimum_os names ", in_quotes(system, 40), ", a system that this edgekit does not know");
    }
    std::vector<std::uint32_t> numbers;
    if (!parse_version(text_of(version, "minimum_os", where), numbers)) {
      malformed(where, in_quotes(version.string(), 40), " is no version");
    }
    member.minimum_os.emplace_back(system, version.string());
  }
  if (entry.at("chips").kind() != Json::Kind::array) malformed(where, "chips is not a list");
  for (const Json &chip : entry.at("chips").array()) member.chips.push_back(text_of(chip, "a chip", where));
  return member;
}

// Empty where the member names no version of that system.
std::string minimum_text(const BundleSetMember &member, std::string_view system) {
  for (const auto &[name, version] : member.minimum_os) {
    if (name == system) return version;
  }
  return {};
}

// The same as numbers: what any version runs comes before all versions.
std::vector<std::uint32_t> minimum_of(const BundleSetMember &member, std::string_view system) {
  std::vector<std::uint32_t> numbers;
  const std::string version = minimum_text(member, system);
  if (!version.empty()) parse_version(version, numbers);
  return numbers;
}

void check_members(const BundleSet &set, const std::string &where) {
  if (set.members.empty()) malformed(where, "lists no bundles");
  for (std::size_t i = 0; i < set.members.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (set.members[i].path == set.members[j].path) malformed(where, "two bundles have the same path");
      if (set.members[i].format == set.members[j].format) malformed(where, "two bundles have the same format");
    }
    for (const char *system : kSystems) {
      if (i > 0 && minimum_of(set.members[i - 1], system) < minimum_of(set.members[i], system)) {
        malformed(where, "bundles for newer systems must come before others");
      }
    }
  }
}

// For a runner none of whose formats is in the set.
std::string missing_formats(const BundleSet &set, const BundleRunner &runner, bool is_own) {
  std::vector<std::string> formats;
  for (const BundleSetMember &member : set.members) formats.push_back(in_quotes(member.format, 40));
  return "has bundles for " + joined(formats, "and") + ", not for " + joined(runner.formats, "or") +
         (is_own ? kOwn : kOfOthers);
}

// For a runner for whose formats the set has bundles, all for later systems.
std::string later_systems(const BundleSet &set, const BundleRunner &runner, bool is_own) {
  std::vector<std::string> refusals;
  for (const BundleSetMember &member : set.members) {
    refusals.push_back(in_quotes(member.path, 40) +
                       (runner.has_format(member.format)
                            ? " is for " + runner.system + " " + minimum_text(member, runner.system) + " and later"
                            : " is not for " + joined(runner.formats, "or")));
  }
  return "none of its bundles runs here: " + joined(refusals, "and") + "; this is " + runner.system + " " + runner.version +
         (is_own ? kOwn : kOfOthers);
}

// Whether programs were compiled, but not for the runner's chip: it would compile them whenever it opens them.
bool needs_compiling(const BundleSetMember &member, const BundleRunner &runner) {
  const auto is_own = [&](const std::string &name) { return is_chip(runner.chip, name); };
  return !runner.chip.empty() && !member.chips.empty() && std::none_of(member.chips.begin(), member.chips.end(), is_own);
}

}  // namespace

bool is_chip(std::string_view chip, std::string_view name) {
  return chip.substr(0, name.size()) == name && (chip.size() == name.size() || chip[name.size()] == '-');
}

bool BundleRunner::has_format(std::string_view format) const {
  return formats.empty() || std::find(formats.begin(), formats.end(), format) != formats.end();
}

std::string joined(const std::vector<std::string> &names, const char *last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? std::string(" ") + last + " " : ", ";
    text += names[i];
  }
  return text;
}

const BundleFile *BundleSet::find(std::string_view name) const noexcept {
  const auto found = std::find_if(files.begin(), files.end(), [name](const BundleFile &file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

BundleSet parse_bundle_set(std::string_view text, const std::string &where) {
  const Json root = Json::parse(text, where);
  if (root.kind() != Json::Kind::object || root.find("schema_version") == nullptr) {
    fail(EK_MALFORMED_FILE, where, ": is not edgekit's: it has no schema_version");
  }
  const Json &version = root.at("schema_version");
  if (version.kind() != Json::Kind::integer || version.integer() != kSchemaVersion) {
    const bool whole = version.kind() == Json::Kind::integer;
    fail(EK_UNSUPPORTED_VERSION, where, ": schema version ", whole ? std::to_string(version.integer()) : "unknown",
         ", this edgekit reads ", kSchemaVersion, "; update edgekit or export the bundles again");
  }
  require_members(root, {"schema_version", "bundles", "files"}, "the file", where);
  if (root.at("bundles").kind() != Json::Kind::array || root.at("files").kind() != Json::Kind::object) {
    malformed(where, "bundles must be a list and files an object");
  }
  BundleSet set;
  for (const Json &entry : root.at("bundles").array()) set.members.push_back(parse_member(entry, where));
  check_members(set, where);
  for (const auto &[name, entry] : root.at("files").object()) set.files.push_back(parse_bundle_file(name, entry, where));
  return set;
}

const BundleSetMember &choose_member(const BundleSet &set, const BundleRunner &runner, const std::string &where, bool is_own) {
  std::vector<std::uint32_t> own;
  if (!runner.system.empty() && !parse_version(runner.version, own)) {
    fail(EK_INVALID_ARGUMENT, in_quotes(runner.version, 40), " is no version of a system; give numbers with dots");
  }
  bool formats_fit = false;
  const BundleSetMember *for_other_chips = nullptr;
  for (const BundleSetMember &member : set.members) {
    if (!runner.has_format(member.format)) continue;
    formats_fit = true;
    if (!runner.system.empty() && own < minimum_of(member, runner.system)) continue;
    if (!needs_compiling(member, runner)) return member;
    if (for_other_chips == nullptr) for_other_chips = &member;
  }
  if (for_other_chips != nullptr) return *for_other_chips;
  fail(EK_UNSUPPORTED_BUNDLE, where, ": ", formats_fit ? later_systems(set, runner, is_own) : missing_formats(set, runner, is_own));
}

const BundleFile &manifest_of(const BundleSet &set, const BundleSetMember &member, const std::string &where) {
  const std::string name = member.path + "/" + kManifestName;
  const BundleFile *listed = set.find(name);
  if (listed == nullptr) fail(EK_MALFORMED_FILE, where, ": does not list ", in_quotes(name), "; export the folder again");
  return *listed;
}

}  // namespace edgekit
