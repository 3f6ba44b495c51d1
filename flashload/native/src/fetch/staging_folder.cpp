#include "fetch/staging_folder.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "bundle_folder.h"
#include "error.h"
#include "manifest_reader.h"
#include "new_file.h"
#include "printable.h"

namespace edgekit {
namespace {

namespace fs = std::filesystem;

constexpr const char *kArriving = ".arriving";
constexpr const char *kReplaced = ".replaced";
constexpr const char *kMark = ".edgekit-arriving";

fs::path absolute_path(const std::string &folder) {
  if (folder.empty() || folder.find('\0') != std::string::npos) {
    fail(EK_OPEN_FAILED, "the path of the bundle is empty or holds a null byte; check the path");
  }
  std::error_code error;
  fs::path path;
  try {
    path = fs::u8path(folder);
    path = fs::weakly_canonical(fs::absolute(path, error), error);  // of a link, where it leads
  } catch (const std::system_error &) {  // where paths are not bytes, as on Windows
    fail(EK_OPEN_FAILED, folder, ": is not UTF-8; check the path");
  }
  if (path.filename().empty()) path = path.parent_path();
  if (error || !path.has_filename()) fail(EK_OPEN_FAILED, folder, ": is no path of a folder for a bundle; check the path");
  return path;
}

fs::path with_end(const fs::path &path, const char *end) {
  fs::path out = path;
  out += end;
  return out;
}

// Left by systems in any folder that somebody has looked at, those below a bundle's too.
bool is_of_system(const std::string &path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name == ".DS_Store" || name == "Thumbs.db" || name == "desktop.ini";
}

// What a folder is to a fetch, as its mark says.
constexpr const char *kIsArriving = "arriving\n";
constexpr const char *kIsReplaced = "replaced\n";

void mark(const fs::path &folder, const char *what) {
  std::error_code error;
  const fs::file_status found = fs::symlink_status(folder / kMark, error);
  // Its bytes would be another file's.
  if (fs::exists(found) && (!fs::is_regular_file(found) || fs::hard_link_count(folder / kMark, error) > 1)) {
    fail(EK_OPEN_FAILED, (folder / kMark).u8string(), ": is a link, or no file; remove it");
  }
  // Under its own name from the start: a mark that is cut short says nothing, and does no harm.
  std::ofstream file(folder / kMark, std::ios::binary | std::ios::trunc);
  file << what << std::flush;
  if (!file) fail(EK_WRITE_FAILED, folder.u8string(), ": cannot be written to; check the folder and the room on its disk");
}

bool is_marked(const fs::path &folder, const char *what) {
  std::error_code error;
  // What is no file may block whoever opens it, or have no end.
  if (!fs::is_regular_file(fs::symlink_status(folder / kMark, error))) return false;
  if (fs::file_size(folder / kMark, error) != std::strlen(what) || error) return false;
  std::ifstream file(folder / kMark, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  return file && text == what;
}

void unmark(const fs::path &folder) noexcept {
  std::error_code error;  // one that stays does no harm
  fs::remove(folder / kMark, error);
}

// The files that the bundle in a folder lists, and its manifest. Throws Error where that cannot be read.
std::unordered_set<std::string> listed_in(const std::string &folder) {
  const BundleFolder bundle(folder);
  std::unordered_set<std::string> names{kManifestName, bundle.weights().name};
  for (const BundleFile &file : bundle.files()) names.insert(file.name);
  return names;
}

// Every file below, by its name with forward slashes. Throws std::filesystem::filesystem_error.
std::vector<std::string> files_below(const fs::path &folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry &entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink() || !entry.is_directory()) names.push_back(entry.path().lexically_relative(folder).generic_u8string());
  }
  return names;
}

// Every folder below, those within others first. Throws std::filesystem::filesystem_error.
std::vector<fs::path> folders_below(const fs::path &folder) {
  std::vector<fs::path> folders;
  for (const fs::directory_entry &entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_symlink() && entry.is_directory()) folders.push_back(entry.path());
  }
  std::reverse(folders.begin(), folders.end());
  return folders;
}

// For messages; null for a file, and for nothing.
const char *other_than_file(const fs::path &path) {
  std::error_code error;
  switch (fs::symlink_status(path, error).type()) {
    case fs::file_type::none:
    case fs::file_type::not_found:
    case fs::file_type::regular:
      return nullptr;
    case fs::file_type::directory:
      return "a folder";
    case fs::file_type::symlink:
      return "a link";
    case fs::file_type::fifo:
      return "a FIFO";
    case fs::file_type::socket:
      return "a socket";
    default:
      return "a device";
  }
}

[[noreturn]] void refuse(const fs::path &path, const char *doing, const std::error_code &error) {
  fail(EK_WRITE_FAILED, path.u8string(), ": cannot ", doing, " (", error.message(), "); check the folder and its disk");
}

// Removes a bundle that was replaced: the files that its manifest lists, and folders that are empty then. The mark goes last,
// so that an end in between is found again. What somebody else has put there stays, and then the folder is nobody's.
void remove_replaced(const fs::path &folder) noexcept {
  std::error_code error;
  try {
    std::unordered_set<std::string> names;
    try {
      names = listed_in(folder.u8string());
    } catch (const Error &) {
      // Its manifest is gone already, and it goes behind what it lists.
    }
    names.erase(kManifestName);  // last of them: it says which they are
    for (const std::string &name : files_below(folder)) {
      if (names.count(name) != 0 || is_of_system(name)) fs::remove(folder / fs::u8path(name), error);
    }
    fs::remove(folder / kManifestName, error);
    for (const fs::path &each : folders_below(folder)) fs::remove(each, error);  // where it is empty
  } catch (const std::exception &) {
    return;  // the next fetch goes on with it
  }
  unmark(folder);
  fs::remove(folder, error);
}

void rename_folder(const fs::path &from, const fs::path &to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) refuse(from, "be given its name", error);
}

}  // namespace

StagingFolder::StagingFolder(const std::string &folder) : folder_(absolute_path(folder)) {
  staging_ = with_end(folder_, kArriving);
  replaced_ = with_end(folder_, kReplaced);
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder_, error)) && !fs::is_directory(folder_, error)) {
    fail(EK_OPEN_FAILED, this->folder(), ": is there, and is no folder; give the path of a folder for the bundle");
  }
  if (is_mount_point(folder_)) {
    fail(EK_OPEN_FAILED, this->folder(), ": another disk is mounted there, which a bundle cannot change places with; give a folder below it");
  }
  if (fs::exists(folder_, error) && fs::equivalent(folder_, fs::current_path(error), error)) {
    fail(EK_OPEN_FAILED, this->folder(), ": is the current folder, which a bundle cannot change places with; give one below it");
  }
  if (fs::exists(staging_, error) && !fs::is_directory(staging_, error)) {
    fail(EK_OPEN_FAILED, path(), ": is there, and is no folder; bundles arrive in a folder of that name: move it away");
  }
  fs::create_directories(staging_, error);
  if (error) refuse(staging_, "be made", error);
  if (fs::is_symlink(staging_, error)) fail(EK_OPEN_FAILED, path(), ": is a link; remove it");
  if (!kept_.keep(staging_)) fail(EK_INVALID_STATE, path(), ": another one fetches this bundle now; wait for it, or end it");
  // What a fetch has left that was ended between its last steps.
  if (!fs::exists(folder_, error) && is_marked(replaced_, kIsReplaced)) rename_folder(replaced_, folder_);
  if (fs::exists(folder_, error)) unmark(folder_);
  if (is_marked(replaced_, kIsReplaced)) remove_replaced(replaced_);
  if (is_marked(staging_, kIsReplaced)) remove_replaced(staging_);
  if (!fs::exists(staging_, error)) {
    fs::create_directories(staging_, error);
    if (error) refuse(staging_, "be made", error);
    if (!kept_.keep(staging_)) fail(EK_INVALID_STATE, path(), ": another one fetches this bundle now; wait for it, or end it");
  }
  if (!fs::exists(staging_ / kMark, error) && (!fs::is_empty(staging_, error) || error)) {
    fail(EK_OPEN_FAILED, path(), ": is there, and is not of a fetch; bundles arrive in a folder of that name: move it away");
  }
  mark(staging_, kIsArriving);
  // It stays until the end, as a whole bundle has one.
  fs::remove(staging_ / kManifestName, error);
  if (error) {
    require_place(kManifestName);
    refuse(staging_, "be emptied", error);
  }
}

StagingFolder::~StagingFolder() {
  if (has_mark_alone()) discard();
}

bool StagingFolder::has_mark_alone() const {
  std::error_code error;
  const auto first = fs::directory_iterator(staging_, error);
  if (error || first == fs::directory_iterator() || first->path().filename() != kMark) return false;
  auto second = first;
  return second.increment(error) == fs::directory_iterator() && !error;
}

bool StagingFolder::has_bundle() const {
  std::error_code error;
  return fs::exists(folder_ / kManifestName, error);
}

void StagingFolder::require_replaceable() const {
  std::error_code error;
  if (!fs::exists(folder_, error)) return;
  std::vector<std::string> names;
  try {
    names = files_below(folder_);
  } catch (const fs::filesystem_error &failure) {
    fail(EK_OPEN_FAILED, folder(), ": cannot be looked into (", failure.code().message(), "); check the rights to it");
  }
  std::unordered_set<std::string> listed;
  if (has_bundle()) {
    try {
      listed = listed_in(folder());
    } catch (const Error &failure) {
      fail(EK_INVALID_ARGUMENT, folder(), ": has an ", kManifestName, " that is no bundle's (", failure.what(),
           "); move the folder away, or give another one");
    }
  }
  for (const std::string &name : names) {
    if (listed.count(name) != 0 || name == kMark || is_of_system(name)) continue;
    fail(EK_INVALID_ARGUMENT, folder(), ": has ", in_quotes(name),
         has_bundle() ? ", which is no file of its bundle" : ", and is no bundle",
         "; move that away, or give another folder");
  }
}

std::uint64_t StagingFolder::room() const {
  std::error_code error;
  const fs::space_info found = fs::space(staging_, error);
  if (error) refuse(staging_, "be asked for its room", error);
  return found.available;
}

std::uint64_t StagingFolder::taken(const std::string &name) const { return bytes_on_disk(staging_ / fs::u8path(name)); }

bool StagingFolder::has_file(const std::string &name, std::uint64_t size) const {
  const fs::path path = staging_ / fs::u8path(name);
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error)) && fs::file_size(path, error) == size;
}

void StagingFolder::require_place(const std::string &name) const {
  const fs::path path = staging_ / fs::u8path(name);
  const char *other = other_than_file(path);
  if (other != nullptr) {
    fail(EK_OPEN_FAILED, path.u8string(), ": is ", other, ", where a file of the bundle is to lie; remove it or move it away");
  }
}

std::string StagingFolder::place(const std::string &name) const {
  const fs::path path = staging_ / fs::u8path(name);
  std::error_code error;
  // Made anew it would have no mark, and the next fetch take it for somebody else's. Another fetch may have made it since.
  if (!fs::exists(staging_, error) || !kept_.keeps(staging_)) {
    fail(EK_WRITE_FAILED, this->path(), ": was removed while the bundle arrived; fetch it again");
  }
  for (fs::path within = path.parent_path(); within != staging_; within = within.parent_path()) {
    if (fs::is_symlink(within, error)) fail(EK_OPEN_FAILED, within.u8string(), ": is a link; remove it");
  }
  fs::create_directories(path.parent_path(), error);
  if (error) refuse(path.parent_path(), "be made", error);
  require_place(name);
  return path.u8string();
}

void StagingFolder::write(const std::string &name, const std::string &bytes) const {
  NewFile file(place(name));
  file.write(bytes.data(), bytes.size());
  file.finish();
}

void StagingFolder::remove_others(const Listed &listed) const {
  try {
    for (const std::string &name : files_below(staging_)) {
      if (!listed(name) && name != kMark) fs::remove(staging_ / fs::u8path(name));
    }
    for (const fs::path &each : folders_below(staging_)) {
      if (fs::is_empty(each)) fs::remove(each);
    }
  } catch (const fs::filesystem_error &failure) {
    refuse(staging_, "be put in order", failure.code());
  }
}

void StagingFolder::switch_over(const Listed &listed) {
  std::error_code error;
  const auto leave = [this] {
    unmark(folder_);
    kept_.release();
  };
  remove_others(listed);
  try {
    for (const fs::path &each : folders_below(staging_)) sync_folder(each);
    sync_folder(staging_);
  } catch (const fs::filesystem_error &failure) {
    refuse(staging_, "be put in order", failure.code());
  }
  if (!fs::exists(folder_, error)) {
    rename_folder(staging_, folder_);
    sync_folder(folder_.parent_path());
    leave();
    return;
  }
  require_replaceable();  // again: much may have come meanwhile
  KeptFolder before;  // until it is gone: under its next name another fetch would take it for its own
  before.keep(folder_);
  mark(folder_, kIsReplaced);
  if (exchange_folders(staging_, folder_)) {
    sync_folder(folder_.parent_path());
    remove_replaced(staging_);
  } else {
    rename_folder(folder_, replaced_);
    rename_folder(staging_, folder_);
    sync_folder(folder_.parent_path());
    remove_replaced(replaced_);
  }
  leave();
}

void StagingFolder::discard() noexcept {
  if (!kept_.keeps(staging_)) return;
  std::error_code error;
  try {
    std::vector<fs::path> found;
    for (const fs::directory_entry &entry : fs::directory_iterator(staging_)) found.push_back(entry.path());
    for (const fs::path &each : found) {
      if (each.filename() != kMark) fs::remove_all(each, error);
    }
  } catch (const std::exception &) {
    return;  // it is of a fetch still
  }
  if (!has_mark_alone()) return;
  unmark(staging_);
  fs::remove(staging_, error);
  kept_.release();
}

}  // namespace edgekit
