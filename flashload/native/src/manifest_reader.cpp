#include "manifest_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "error.h"
#include "printable.h"

namespace edgekit {
namespace {

namespace fs = std::filesystem;

constexpr const char *kManifestName = "edgekit.json";
constexpr std::int64_t kSchemaVersion = 1;
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;

struct Section {
  const char *name;
  Json::Kind kind;
};

constexpr Section kSections[] = {
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

// A bundle comes from elsewhere: its manifest must not reach outside its directory on any system.
bool is_inside(std::string_view name) {
  if (name.find_first_of(std::string_view("\\:\0", 3)) != std::string_view::npos) return false;
  while (true) {
    const std::size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

bool is_sha256(const Json &value) {
  return value.kind() == Json::Kind::string && value.string().size() == 64 &&
         value.string().find_first_not_of("0123456789abcdef") == std::string::npos;
}

BundleFile parse_file(const std::string &name, const Json &size, const Json &sha256, const std::string &where) {
  if (!is_inside(name)) malformed(where, in_quotes(name), " is not a plain relative path inside the bundle");
  if (size.kind() != Json::Kind::integer || size.integer() < 0) malformed(where, in_quotes(name), ": bad size");
  if (!is_sha256(sha256)) malformed(where, in_quotes(name), ": sha256 must be 64 lower-case hex digits");
  return {name, static_cast<std::uint64_t>(size.integer()), sha256.string()};
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

std::string read_manifest(const fs::path &path, const std::string &where) {
  const auto cannot_open = [&where](const std::string &why) {
    fail(EK_OPEN_FAILED, where, ": cannot open (", why, "); give the path of an exported bundle");
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) cannot_open(error ? error.message() : "No such file or directory");
  if (!fs::is_regular_file(status)) cannot_open("not a regular file");  // reading a pipe could wait for ever
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) cannot_open(error.message());
  if (size > kMaxManifestBytes) malformed(where, "has ", size, " bytes, more than any manifest");

  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) cannot_open(std::strerror(errno));
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail(EK_READ_FAILED, where, ": cannot be read (", std::strerror(errno), "); check the disk");
  text.resize(static_cast<std::size_t>(file.gcount()));  // shorter when it was cut since its size was asked for
  return text;
}

}  // namespace

BundleManifest parse_manifest(std::string_view text, const std::string &where) {
  BundleManifest out;
  out.root = Json::parse(text, where);
  check_sections(out.root, where);

  const Json &weights = out.root.at("weights");
  const Json *name = weights.find("file"), *size = weights.find("size"), *sha256 = weights.find("sha256");
  if (weights.object().size() != 3 || name == nullptr || size == nullptr || sha256 == nullptr) {
    malformed(where, "weights must have exactly file, size and sha256");
  }
  if (name->kind() != Json::Kind::string) malformed(where, "the file of weights is not a path inside the bundle");
  BundleFile entry = parse_file(name->string(), *size, *sha256, where);

  for (const auto &[key, value] : out.root.at("files").object()) {
    const bool is_object = value.kind() == Json::Kind::object;
    const Json *file_size = is_object ? value.find("size") : nullptr;
    const Json *file_sha256 = is_object ? value.find("sha256") : nullptr;
    if (file_size == nullptr || file_sha256 == nullptr || value.object().size() != 2) {
      malformed(where, in_quotes(key), " must have exactly size and sha256");
    }
    out.files.push_back(parse_file(key, *file_size, *file_sha256, where));
    if (key == entry.name || key == kManifestName) {
      malformed(where, "files must list neither the weights nor the manifest itself");
    }
  }
  out.weights_file = std::move(entry.name);
  out.weights_size = entry.size;
  out.weights_sha256 = std::move(entry.sha256);
  return out;
}

BundleManifest load_manifest(const std::string &bundle_folder) {
  const fs::path path = fs::u8path(bundle_folder) / kManifestName;
  const std::string where = path.u8string();
  BundleManifest out = parse_manifest(read_manifest(path, where), where);
  out.weights_path = (fs::u8path(bundle_folder) / fs::u8path(out.weights_file)).u8string();
  return out;
}

}  // namespace edgekit
