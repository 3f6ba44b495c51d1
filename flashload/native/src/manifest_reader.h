// The text of edgekit.json, see flashload/manifest.py. The sections that only the runtime understands are left to it.
#ifndef EDGEKIT_MANIFEST_READER_H
#define EDGEKIT_MANIFEST_READER_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flash_layout.h"
#include "json.h"

namespace edgekit {

// A file of the bundle as the manifest lists it.
struct BundleFile {
  std::string name;  // relative to the bundle, with forward slashes; stays inside it
  std::uint64_t size = 0;
  std::string sha256;  // 64 lower-case hex digits
  std::uint64_t xxh3 = 0;
};

// What the manifest says of the flash file. Its runs are under the digests in its header.
struct WeightsFile {
  std::string name;
  std::uint64_t size = 0;
  std::string sha256;
  HeaderDigest header;
};

// `root` has the sections "sha256", "schema_version", "model", "programs", "layers", "sampler", "quantization",
// "weights", "files" and "provenance", each of its kind, and no others.
struct BundleManifest {
  Json root;
  WeightsFile weights;
  std::vector<BundleFile> files;  // all but the weights and the manifest
};

constexpr const char *kManifestName = "edgekit.json";
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{16} << 20;

// How a manifest begins; 64 digits follow, of the SHA-256 of the text with zeros in their place.
constexpr std::string_view kSealStart = "{\n  \"sha256\": \"";
constexpr std::size_t kSealDigits = 64;

// The digits for a text that begins so.
std::string manifest_seal(std::string_view text);

// Checks the seal, then the rest. `where` names the text in messages. Throws Error (EK_CHECKSUM_MISMATCH,
// EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION).
BundleManifest parse_manifest(std::string_view text, const std::string &where);

// An entry of a list of files, by its name there. Throws Error (EK_MALFORMED_FILE).
BundleFile parse_bundle_file(const std::string &name, const Json &entry, const std::string &where);

// A plain relative path with forward slashes that stays inside of its folder on any system.
bool is_inside(std::string_view name) noexcept;

}  // namespace edgekit

#endif  // EDGEKIT_MANIFEST_READER_H
