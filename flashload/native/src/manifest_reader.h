// edgekit.json of a bundle, with the checks of flashload/manifest.py. The sections that only the runtime understands
// are left to it.
#ifndef EDGEKIT_MANIFEST_READER_H
#define EDGEKIT_MANIFEST_READER_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace edgekit {

struct BundleFile {
  std::string name;  // relative to the bundle, with forward slashes; stays inside it
  std::uint64_t size = 0;
  std::string sha256;  // 64 lower-case hex digits
};

// `root` has the sections "schema_version", "model", "programs", "layers", "sampler", "quantization", "weights",
// "files" and "provenance", each of its kind, and no others.
struct BundleManifest {
  Json root;
  std::string weights_file;  // relative to the bundle, like BundleFile::name
  std::uint64_t weights_size = 0;
  std::string weights_sha256;
  std::vector<BundleFile> files;  // all but the weights and the manifest
  std::string weights_path;       // set by load_manifest: the folder and weights_file
};

// `where` names the text in messages. Throws Error (EK_MALFORMED_FILE, EK_UNSUPPORTED_VERSION).
BundleManifest parse_manifest(std::string_view text, const std::string &where);

// Reads `bundle_folder`/edgekit.json. Paths are UTF-8. Also throws Error (EK_OPEN_FAILED, EK_READ_FAILED). That the
// weights are there and have their size is left to whoever opens them.
BundleManifest load_manifest(const std::string &bundle_folder);

}  // namespace edgekit

#endif  // EDGEKIT_MANIFEST_READER_H
