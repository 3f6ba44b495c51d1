#include "fetch/staging_folder.h"

#include <algorithm>
#include <system_error>
#include <vector>

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

// Left by systems in any folder that somebody has looked at.
bool is_of_system(const std::string &name) { return name == ".DS_Store" || name == "Thumbs.db" || name == "desktop.ini"; }

// Throws Error (EK_WRITE_FAILED).
void mark(const fs::path &folder) { NewFile((folder / kMark).u8string()).finish(); }

void unmark(const fs::path &folder) noexcept {
  std::error_code error;  // one that stays does no harm
  fs::remove(folder / kMark, error);
}

// Every file below, by its name with forward slashes. Throws std::filesystem::filesystem_error.
std::vector<std::string> files_below(const fs::path &folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry &entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink() || !entry.is_directory()) names.push_back(entry.path().lexically_relative(folder).generic_u8string());
  }
  return names;
}

[[noreturn]] void refuse(const fs::path &path, const char *doing, const std::error_code &error) {
  fail(EK_WRITE_FAILED, path.u8string(), ": cannot ", doing, " (", error.message(), "); check the folder and its disk");
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
  if (fs::exists(folder_, error) && fs::equivalent(folder_, fs::current_path(error), error)) {
    fail(EK_OPEN_FAILED, this->folder(), ": is the current folder, which a bundle cannot change places with; give one below it");
  }
  fs::create_directories(staging_, error);
  if (error) refuse(staging_, "be made", error);
  if (fs::is_symlink(staging_, error)) fail(EK_OPEN_FAILED, path(), ": is a link; remove it");
  if (!kept_.keep(staging_)) fail(EK_INVALID_STATE, path(), ": another one fetches this bundle now; wait for it, or end it");
  if (!fs::exists(staging_ / kMark, error)) {
    if (!fs::is_empty(staging_, error) || error) {
      fail(EK_OPEN_FAILED, path(), ": is there, and is not of a fetch; bundles arrive in a folder of that name: move it away");
    }
    mark(staging_);
  }
  // A fetch that was ended between its last two steps.
  if (!fs::exists(folder_, error) && fs::exists(replaced_ / kMark, error)) rename_folder(replaced_, folder_);
  // It may be the bundle from before, where one was ended behind them.
  fs::remove(staging_ / kManifestName, error);
  if (error) refuse(staging_, "be emptied", error);
}

StagingFolder::~StagingFolder() {
  std::error_code error;
  const auto first = fs::directory_iterator(staging_, error);
  if (error || first == fs::directory_iterator() || first->path().filename() != kMark) return;
  auto second = first;
  if (second.increment(error) == fs::directory_iterator() && !error) discard();
}

bool StagingFolder::has_bundle() const {
  std::error_code error;
  return fs::exists(folder_ / kManifestName, error);
}

void StagingFolder::require_replaceable(const std::function<bool(const std::string &)> &listed) const {
  std::error_code error;
  if (!fs::exists(folder_, error)) return;
  std::vector<std::string> names;
  try {
    names = files_below(folder_);
  } catch (const fs::filesystem_error &failure) {
    fail(EK_OPEN_FAILED, folder(), ": cannot be looked into (", failure.code().message(), "); check the rights to it");
  }
  for (const std::string &name : names) {
    if (listed(name) || name == kMark || is_of_system(fs::u8path(name).filename().u8string())) continue;
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

std::uint64_t StagingFolder::taken() const {
  std::uint64_t count = 0;
  try {
    for (const std::string &name : files_below(staging_)) count += bytes_on_disk(staging_ / fs::u8path(name));
  } catch (const fs::filesystem_error &failure) {
    refuse(staging_, "be looked into", failure.code());
  }
  return count;
}

std::string StagingFolder::place(const std::string &name) const {
  const fs::path path = staging_ / fs::u8path(name);
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) refuse(path.parent_path(), "be made", error);
  return path.u8string();
}

void StagingFolder::write(const std::string &name, const std::string &bytes) const {
  NewFile file(place(name));
  file.write(bytes.data(), bytes.size());
  file.finish();
}

void StagingFolder::switch_over(const std::function<bool(const std::string &)> &listed) {
  std::error_code error;
  try {
    for (const std::string &name : files_below(staging_)) {
      if (!listed(name) && name != kMark) fs::remove(staging_ / fs::u8path(name));
    }
    std::vector<fs::path> folders{staging_};
    for (const fs::directory_entry &entry : fs::recursive_directory_iterator(staging_)) {
      if (entry.is_directory()) folders.push_back(entry.path());
    }
    std::reverse(folders.begin(), folders.end());  // those within others first
    for (const fs::path &each : folders) {
      if (each != staging_ && fs::is_empty(each)) {
        fs::remove(each);
      } else {
        sync_folder(each);
      }
    }
  } catch (const fs::filesystem_error &failure) {
    refuse(staging_, "be put in order", failure.code());
  }
  if (!fs::exists(folder_, error)) {
    rename_folder(staging_, folder_);
    unmark(folder_);
    sync_folder(folder_.parent_path());
    return;
  }
  mark(folder_);  // it is to be the one that is of a fetch
  if (exchange_folders(staging_, folder_)) {
    sync_folder(folder_.parent_path());
    fs::remove_all(staging_, error);
  } else {
    if (fs::exists(replaced_ / kMark, error)) fs::remove_all(replaced_, error);
    rename_folder(folder_, replaced_);
    rename_folder(staging_, folder_);
    sync_folder(folder_.parent_path());
    fs::remove_all(replaced_, error);
  }
  unmark(folder_);
}

void StagingFolder::discard() noexcept {
  std::error_code error;
  fs::remove_all(staging_, error);
}

}  // namespace edgekit
