#include "manifest_reader.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "error.h"
#include "portable_names.h"
#include "printable.h"
#include "sha256.h"

namespace edgekit {
namespace {

constexpr std::int64_t kSchemaVersion = 2;

struct Section {
  const char *name;
  Json::Kind kind;
};

constexpr Section kSections[] = {
    {"sha256", Json::Kind::string},
    {"schema_version", Json::Kind::integer}, {"model", Json::Kind::object},
    {"programs", Json::Kind::object},        {"layers", Json::Kind::array},
    {"sampler", Json::Kind::object},         {"quantization", Json::Kind::object},
    {"weights", Json::Kind::object},         {"files", Json::Kind::object},
    {"provenance", Json::Kind::object},
};

template <typename... Parts>
[[noreturn]] void malformed(const std::string &where, const Parts &...parts) {
  fail(EK_MALFORMED_FILE, where, ": ", parts...);
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// The number that a manifest without a seal has as its schema version; empty where the text is none.
std::string_view unsealed_version(std::string_view text) {
  const auto skip = [&text](std::string_view wanted) {
    const std::size_t start = text.find_first_not_of(" \t\r\n");
    if (start == std::string_view::npos || text.substr(start, wanted.size()) != wanted) return false;
    text.remove_prefix(start + wanted.size());
    return true;
  };
  if (!skip("{") || !skip("\"schema_version\"") || !skip(":") || !skip("")) return {};
  return text.substr(0, std::min(text.find_first_not_of("0123456789"), std::size_t{20}));
}

// Before anything is made of the text: one changed bit anywhere is enough for another answer.
void check_seal(std::string_view text, const std::string &where) {
  const std::string_view digits = text.substr(std::min(kSealStart.size(), text.size())).substr(0, kSealDigits);
  if (text.substr(0, kSealStart.size()) != kSealStart || !is_hex(digits, kSealDigits)) {
    const std::string_view version = unsealed_version(text);
    if (!version.empty()) {
      fail(EK_UNSUPPORTED_VERSION, where, ": schema version ", version, ", this edgekit reads ", kSchemaVersion,
           "; export the bundle again");
    }
    malformed(where, "is not an edgekit manifest: it does not begin with its SHA-256; copy or export the bundle again");
  }
  if (manifest_seal(text) != digits) {
    fail(EK_CHECKSUM_MISMATCH, where,
         ": its SHA-256 is not the one that it begins with: it was changed or damaged; copy or export the bundle again");
  }
}

// Whether an object has these members and no others.
bool has_exactly(const Json &value, std::initializer_list<const char *> names) {
  return value.kind() == Json::Kind::object && value.object().size() == names.size() &&
         std::all_of(names.begin(), names.end(), [&value](const char *name) { return value.find(name) != nullptr; });
}

std::uint64_t parse_size(const Json &size, const std::string &name, const std::string &where) {
  if (size.kind() != Json::Kind::integer || size.integer() < 0) malformed(where, in_quotes(name), ": bad size");
  return static_cast<std::uint64_t>(size.integer());
}

std::uint64_t parse_xxh3(const Json &digest, const std::string &name, const std::string &where) {
  std::uint64_t value = 0;
  if (digest.kind() != Json::Kind::string || !parse_hex64(digest.string(), value)) {
    malformed(where, in_quotes(name), ": xxh3 must be 16 lower-case hex digits");
  }
  return value;
}

const std::string &parse_sha256(const Json &digest, const std::string &name, const std::string &where) {
  if (digest.kind() != Json::Kind::string || !is_hex(digest.string(), 64)) {
    malformed(where, in_quotes(name), ": sha256 must be 64 lower-case hex digits");
  }
  return digest.string();
}

void check_name(const std::string &name, const std::string &where) {
  if (!is_inside(name)) malformed(where, in_quotes(name), " is not a plain relative path inside the bundle");
  const std::string_view fault = portable_fault(name);
  if (fault.empty()) return;
  malformed(where, in_quotes(name), " is a name that not every system takes: ", fault, "; export the bundle again");
}

// Names that are two here and one elsewhere.
void check_names(const BundleManifest &manifest, const std::string &where) {
  PortableNames names;
  const auto add = [&](const std::string &name) {
    const std::string other = names.add(name);
    if (other.empty()) return;
    malformed(where, in_quotes(name), " and ", in_quotes(other),
              " cannot both lie where capital letters do not count; export the bundle again");
  };
  add(kManifestName);
  add(manifest.weights.name);
  for (const BundleFile &file : manifest.files) add(file.name);
}

WeightsFile parse_weights(const Json &entry, const std::string &where) {
  if (!has_exactly(entry, {"file", "size", "sha256", "header_size", "header_xxh3"})) {
    malformed(where, "weights must have exactly file, size, sha256, header_size and header_xxh3");
  }
  if (entry.at("file").kind() != Json::Kind::string) {
    malformed(where, "the file of weights is not a path inside the bundle");
  }
  WeightsFile out;
  out.name = entry.at("file").string();
  check_name(out.name, where);
  if (out.name == kManifestName) malformed(where, "the file of weights has the name of the manifest");
  out.size = parse_size(entry.at("size"), out.name, where);
  out.sha256 = parse_sha256(entry.at("sha256"), out.name, where);
  out.header.size = parse_size(entry.at("header_size"), out.name, where);
  out.header.xxh3 = parse_xxh3(entry.at("header_xxh3"), out.name, where);
  if (out.header.size < 8 || out.header.size > kMaxHeaderBytes || out.header.size > out.size) {
    malformed(where, in_quotes(out.name), ": bad header_size");
  }
  return out;
}

void check_sections(const Json &root, const std::string &where) {
  if (root.kind() != Json::Kind::object || root.find("schema_version") == nullptr) {
    malformed(where, "is not an edgekit manifest: it has no schema_version");
  }
  const Json &version = root.at("schema_version");
  if (version.kind() != Json::Kind::integer || version.integer() != kSchemaVersion) {
    const bool whole = version.kind() == Json::Kind::integer;
    fail(EK_UNSUPPORTED_VERSION, where, ": schema version ", whole ? std::to_string(version.integer()) : "unknown",
         ", this edgekit reads ", kSchemaVersion, "; update edgekit or export the bundle again");
  }
  for (const Section &section : kSections) {
    const Json *value = root.find(section.name);
    if (value == nullptr) malformed(where, section.name, " is missing; export the bundle again");
    if (value->kind() != section.kind) {
      malformed(where, section.name, " must be ", section.kind == Json::Kind::array ? "a list" : "an object",
                "; export the bundle again");
    }
  }
  for (const auto &[key, value] : root.object()) {
    const std::string &name = key;  // a lambda may not capture a structured binding
    if (std::none_of(std::begin(kSections), std::end(kSections), [&](const Section &s) { return name == s.name; })) {
      malformed(where, "unknown section ", in_quotes(name));
    }
  }
}

}  // namespace

bool is_inside(std::string_view name) noexcept {
  if (name.find_first_of(std::string_view("\\:\0", 3)) != std::string_view::npos) return false;
  while (true) {
    const std::size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

std::string manifest_seal(std::string_view text) {
  const std::string zeros(kSealDigits, '0');
  Sha256 digest;
  digest.update(kSealStart.data(), kSealStart.size());
  digest.update(zeros.data(), zeros.size());
  const std::string_view rest = text.substr(std::min(kSealStart.size() + kSealDigits, text.size()));
  digest.update(rest.data(), rest.size());
  return digest.hex();
}

BundleFile parse_bundle_file(const std::string &name, const Json &entry, const std::string &where) {
  check_name(name, where);
  if (!has_exactly(entry, {"size", "sha256", "xxh3"})) {
    malformed(where, in_quotes(name), " must have exactly size, sha256 and xxh3");
  }
  return {name, parse_size(entry.at("size"), name, where), parse_sha256(entry.at("sha256"), name, where),
          parse_xxh3(entry.at("xxh3"), name, where)};
}

BundleManifest parse_manifest(std::string_view text, const std::string &where) {
  check_seal(text, where);
  BundleManifest out;
  out.root = Json::parse(text, where);
  check_sections(out.root, where);
  out.weights = parse_weights(out.root.at("weights"), where);
  for (const auto &[name, entry] : out.root.at("files").object()) {
    out.files.push_back(parse_bundle_file(name, entry, where));
    if (name == out.weights.name || name == kManifestName) {
      malformed(where, "files must list neither the weights nor the manifest itself");
    }
  }
  check_names(out, where);
  return out;
}

}  // namespace edgekit
