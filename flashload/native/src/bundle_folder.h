// The files of a bundle: every one is compared with what the manifest says of it before it is used, and a file that the
// manifest does not list cannot be read.
//
// A bundle comes from elsewhere. Its files must be regular ones, and symbolic links are followed to files of the same
// folder alone, and from a snapshot in a cache of Hugging Face (REPOSITORY/snapshots/REVISION) to REPOSITORY/blobs,
// where such a cache keeps what its links stand for.
#ifndef EDGEKIT_BUNDLE_FOLDER_H
#define EDGEKIT_BUNDLE_FOLDER_H

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "flash_file.h"
#include "manifest_reader.h"
#include "system_file.h"

namespace edgekit {

class BundleFolder {
 public:
  // The most that is read into memory as a whole.
  static constexpr std::uint64_t kMaxReadBytes = std::uint64_t{256} << 20;

  // Reads the manifest alone. Paths are UTF-8. Throws Error: EK_OPEN_FAILED, EK_READ_FAILED, EK_UNSUPPORTED_BUNDLE for
  // a folder of several bundles, and those of parse_manifest.
  explicit BundleFolder(const std::string &folder);

  const std::string &path() const noexcept { return path_; }
  // The manifest's own bytes.
  const std::string &text() const noexcept { return text_; }
  const WeightsFile &weights() const noexcept { return manifest_.weights; }
  // All but the weights and the manifest.
  const std::vector<BundleFile> &files() const noexcept { return manifest_.files; }
  // The parsed manifest, which is not kept.
  Json take_root() { return std::move(manifest_.root); }

  // Whether the manifest lists a file.
  bool lists(const std::string &name) const { return index_.count(name) != 0; }

  // Bytes of a file as the manifest lists it. Throws Error: EK_INVALID_ARGUMENT for others, EK_MALFORMED_FILE for more
  // than kMaxReadBytes.
  std::uint64_t size_of(const std::string &name) const;

  // Reads a listed file into `out`, which has room for size_of() bytes. Throws Error: EK_INVALID_ARGUMENT,
  // EK_OPEN_FAILED, EK_MALFORMED_FILE and EK_TRUNCATED_FILE for another size, EK_READ_FAILED, EK_FILE_CHANGED,
  // EK_CHECKSUM_MISMATCH.
  void read(const std::string &name, void *out) const;

  // Compares a listed file, part by part, for those that a system opens by its path; of the weights their header, as
  // their runs are compared when they are read. Throws as read() does.
  FileIdentity check(const std::string &name) const;
  // Throws Error where a file is no more the one that check() compared: EK_FILE_CHANGED, EK_OPEN_FAILED.
  void require_unchanged(const std::string &name, const FileIdentity &checked) const;

  // The flash file, its header compared. Throws as check() does, and as FlashFile.
  std::unique_ptr<FlashFile> open_weights(const FlashOptions &options, const FlashFile::Wrap &wrap = nullptr) const;

 private:
  const BundleFile &entry(const std::string &name) const;

  std::string path_, text_;
  BundleManifest manifest_;
  std::unordered_map<std::string, std::size_t> index_;  // of files
};

// What is in a folder. One with a manifest is a bundle, whatever else lies there.
enum class FolderKind { other, bundle, set };

// Looks at names alone, and takes what cannot be looked into for `other`.
FolderKind kind_of_folder(const std::string &folder);

// Throws Error where a folder is no bundle, and says why: EK_OPEN_FAILED, EK_UNSUPPORTED_BUNDLE for several bundles.
void require_bundle(const std::string &folder);

// A file of a folder that no manifest lists, such as bundles.json: a regular one, links followed as in bundles, not
// compared with anything. Throws Error: EK_INVALID_ARGUMENT for a path that leaves the folder, EK_OPEN_FAILED,
// EK_READ_FAILED, EK_MALFORMED_FILE for more than `most` bytes.
std::string read_folder_file(const std::string &folder, const std::string &name, std::uint64_t most);

// Compares a file of a folder with what something else than a manifest says of it. Throws as BundleFolder::check.
void check_folder_file(const std::string &folder, const std::string &name, std::uint64_t size, std::uint64_t xxh3);

}  // namespace edgekit

#endif  // EDGEKIT_BUNDLE_FOLDER_H
