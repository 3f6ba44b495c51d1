#include "bundle_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "block_file.h"
#include "bundle_set.h"
#include "error.h"
#include "printable.h"
#include "xxh3.h"

namespace edgekit {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPartBytes = std::size_t{1} << 20;

fs::path path_of(const std::string &text) {
  if (text.find('\0') != std::string::npos) fail(EK_OPEN_FAILED, "a path holds a null byte; check the path");
  try {
    return fs::u8path(text);
  } catch (const std::system_error &) {  // where paths are not bytes, as on Windows
    fail(EK_OPEN_FAILED, text, ": is not UTF-8; check the path");
  }
}

bool is_below(const fs::path &path, const fs::path &folder) {
  const auto [left, right] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  (void)right;
  return left == folder.end();
}

// Whether `path` is where a cache of Hugging Face keeps the files of the snapshot that `folder` lies in.
bool is_blob(const fs::path &path, const fs::path &folder) {
  const std::string name = path.filename().u8string();
  if (name.size() < 40 || name.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
  for (fs::path revision = folder; revision.has_relative_path(); revision = revision.parent_path()) {
    const fs::path snapshots = revision.parent_path();
    if (snapshots.filename() == "snapshots" && path.parent_path() == snapshots.parent_path() / "blobs") return true;
  }
  return false;
}

fs::path real_folder(const std::string &folder) {
  std::error_code error;
  const fs::path root = real_path(path_of(folder), error);
  if (error) fail(EK_OPEN_FAILED, folder, ": cannot open (", error.message(), "); give the path of an exported bundle");
  return root;
}

// Where a file of the folder really lies, if it may be read from there.
fs::path resolve(const std::string &folder, const std::string &name, const std::string &where) {
  std::error_code error;
  const fs::path root = real_folder(folder);
  const fs::path found = real_path(root / path_of(name), error);
  if (error == std::errc::no_such_file_or_directory) {
    fail(EK_OPEN_FAILED, where, ": is missing; copy or export the bundle again");
  }
  if (error) fail(EK_OPEN_FAILED, where, ": cannot open (", error.message(), "); check the path and its permissions");
  if (!is_below(found, root) && !is_blob(found, root)) {
    fail(EK_OPEN_FAILED, where, ": is a link that leaves the bundle; copy or export the bundle again");
  }
  // Asked before opening too: that alone can move a device.
  if (!fs::is_regular_file(found, error)) {
    fail(EK_OPEN_FAILED, where, ": is ", fs::is_directory(found, error) ? "a directory" : "not a regular file",
         "; copy or export the bundle again");
  }
  return found;
}

std::string shown(const std::string &folder, const std::string &name) {
  return (path_of(folder) / path_of(name)).u8string();
}

BlockFile open_file(const std::string &folder, const std::string &name, const std::string &where) {
  return BlockFile(where, SystemFile::open(resolve(folder, name, where).u8string()), false);
}

void check_size(std::uint64_t found, std::uint64_t expected, const std::string &where) {
  if (found < expected) fail(EK_TRUNCATED_FILE, where, ": has ", found, " of ", expected, " bytes; copy it again");
  if (found > expected) {
    fail(EK_MALFORMED_FILE, where, ": has ", found, " bytes, the manifest says ", expected, "; copy it again");
  }
}

void check_digest(std::uint64_t found, std::uint64_t expected, const std::string &where) {
  if (found == expected) return;
  fail(EK_CHECKSUM_MISMATCH, where, ": has xxh3 ", hex64(found), ", expected ", hex64(expected),
       ": the file is damaged; copy or export it again");
}

std::string read_whole(const std::string &folder, const std::string &name, std::uint64_t most,
                       const std::string &where) {
  BlockFile file = open_file(folder, name, where);
  if (file.size() > most) fail(EK_MALFORMED_FILE, where, ": has ", file.size(), " bytes, more than any such file");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(text.data(), text.size(), 0, true);
  return text;
}

FileIdentity check_parts(const std::string &folder, const std::string &name, std::uint64_t size, std::uint64_t xxh3) {
  const std::string where = shown(folder, name);
  BlockFile file = open_file(folder, name, where);
  check_size(file.size(), size, where);
  Xxh3 digest;
  std::vector<std::uint8_t> part(static_cast<std::size_t>(std::min<std::uint64_t>(size, kPartBytes)));
  for (std::uint64_t at = 0; at < size; at += part.size()) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(size - at, part.size()));
    file.read(part.data(), count, at, true);
    digest.update(part.data(), count);
  }
  check_digest(digest.digest(), xxh3, where);
  return file.identity();
}

}  // namespace

FolderKind kind_of_folder(const std::string &folder) {
  std::error_code error;
  fs::path path;
  try {
    path = path_of(folder);
  } catch (const Error &) {  // a name that no folder has
    return FolderKind::other;
  }
  if (fs::exists(fs::symlink_status(path / kManifestName, error))) return FolderKind::bundle;
  return fs::is_regular_file(path / kBundleSetName, error) ? FolderKind::set : FolderKind::other;
}

void require_bundle(const std::string &folder) {
  std::error_code error;
  const fs::path path = path_of(folder);
  if (fs::is_regular_file(path, error)) fail(EK_OPEN_FAILED, folder, ": is a file; give the folder of a bundle");
  const fs::path root = real_folder(folder);
  if (!fs::is_directory(root, error)) fail(EK_OPEN_FAILED, folder, ": is no folder; give the folder of a bundle");
  const fs::file_status manifest = fs::symlink_status(path / kManifestName, error);
  if (manifest.type() == fs::file_type::none) {
    fail(EK_OPEN_FAILED, folder, ": cannot be looked into: ", error.message(), "; check the rights to the folder");
  }
  if (!fs::exists(manifest)) {
    if (kind_of_folder(folder) == FolderKind::set) {
      fail(EK_UNSUPPORTED_BUNDLE, folder,
           ": has bundles for several formats; give the folder of one of them (the native engine runs those that were "
           "exported with --format native)");
    }
    fail(EK_OPEN_FAILED, folder, ": has no ", kManifestName,
         ": not a bundle, or an unfinished export, which --resume continues");
  }
}

BundleFolder::BundleFolder(const std::string &folder) : path_(folder) {
  require_bundle(folder);
  const std::string where = shown(folder, kManifestName);
  text_ = read_whole(folder, kManifestName, kMaxManifestBytes, where);
  manifest_ = parse_manifest(text_, where);
  for (std::size_t i = 0; i < manifest_.files.size(); ++i) index_.emplace(manifest_.files[i].name, i);
}

const BundleFile &BundleFolder::entry(const std::string &name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    fail(EK_INVALID_ARGUMENT, path_, ": ", in_quotes(name), " is not among the files of the bundle");
  }
  return manifest_.files[found->second];
}

std::uint64_t BundleFolder::size_of(const std::string &name) const {
  const std::uint64_t size = entry(name).size;
  if (size > kMaxReadBytes) {
    fail(EK_MALFORMED_FILE, shown(path_, name), ": has ", size, " bytes, more than any such file; export it again");
  }
  return size;
}

void BundleFolder::read(const std::string &name, void *out) const {
  const BundleFile &listed = entry(name);
  const std::string where = shown(path_, name);
  BlockFile file = open_file(path_, name, where);
  check_size(file.size(), listed.size, where);
  file.read(out, listed.size, 0, true);
  check_digest(xxh3_64(out, static_cast<std::size_t>(listed.size)), listed.xxh3, where);
}

FileIdentity BundleFolder::check(const std::string &name) const {
  if (name == weights().name) {
    const std::string where = shown(path_, name);
    BlockFile file = open_file(path_, name, where);
    check_size(file.size(), weights().size, where);
    std::string start(static_cast<std::size_t>(weights().header.size), '\0');
    file.read(start.data(), start.size(), 0, true);
    check_digest(xxh3_64(start.data(), start.size()), weights().header.xxh3, where + ": its header");
    return file.identity();
  }
  const BundleFile &listed = entry(name);
  return check_parts(path_, name, listed.size, listed.xxh3);
}

void BundleFolder::require_unchanged(const std::string &name, const FileIdentity &checked) const {
  const std::string where = shown(path_, name);
  if (!(open_file(path_, name, where).identity() == checked)) {
    fail(EK_FILE_CHANGED, where, ": is not the file that was compared: the bundle was changed or replaced while it was open; "
         "open it again");
  }
}

std::unique_ptr<FlashFile> BundleFolder::open_weights(const FlashOptions &options, const FlashFile::Wrap &wrap) const {
  const std::string where = shown(path_, weights().name);
  FlashOptions own = options;
  own.header = weights().header;
  own.shown = where;  // not the blob that a link leads to
  auto file = std::make_unique<FlashFile>(resolve(path_, weights().name, where).u8string(), own, wrap);
  check_size(file->layout().size, weights().size, where);
  return file;
}

std::string read_folder_file(const std::string &folder, const std::string &name, std::uint64_t most) {
  if (!is_inside(name)) fail(EK_INVALID_ARGUMENT, in_quotes(name), " is not a plain relative path inside a folder");
  return read_whole(folder, name, most, shown(folder, name));
}

void check_folder_file(const std::string &folder, const std::string &name, std::uint64_t size, std::uint64_t xxh3) {
  if (!is_inside(name)) fail(EK_INVALID_ARGUMENT, in_quotes(name), " is not a plain relative path inside a folder");
  check_parts(folder, name, size, xxh3);
}

}  // namespace edgekit
