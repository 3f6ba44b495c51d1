// Where a bundle arrives: a folder beside the one that it is for, with which it changes places when it is whole.
//
//   FOLDER             the bundle, or none yet
//   FOLDER.arriving    what has arrived; its manifest has another name until the end
//                      .edgekit-arriving in it tells that it is of a fetch, and no folder of somebody else
//   FOLDER.replaced    the bundle before, for a moment, where the system cannot exchange two folders in one step
#ifndef EDGEKIT_STAGING_FOLDER_H
#define EDGEKIT_STAGING_FOLDER_H

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "fetch/folder_system.h"

namespace edgekit {

class StagingFolder {
 public:
  // Makes the folder, and keeps other processes and objects out of it while this lives. Throws Error:
  // EK_WRITE_FAILED, EK_OPEN_FAILED for a path that is no folder's, EK_INVALID_STATE where another one is at it.
  explicit StagingFolder(const std::string &folder);
  ~StagingFolder();  // removes it where nothing has arrived

  std::string folder() const { return folder_.u8string(); }  // that the bundle is for
  std::string path() const { return staging_.u8string(); }
  bool has_bundle() const;  // the folder; false where there is none

  // Throws Error (EK_INVALID_ARGUMENT) for a folder that is no bundle, or has files that its manifest does not list: they
  // would be lost.
  void require_replaceable() const;

  // Bytes that the disk has room for. Throws Error (EK_WRITE_FAILED).
  std::uint64_t room() const;
  // Bytes that a file takes which has arrived, or a part of it.
  std::uint64_t taken(const std::string &name) const;
  // Whether a file of this size is there, and no link.
  bool has_file(const std::string &name, std::uint64_t size) const;

  // Throws Error (EK_OPEN_FAILED) where something else than a file lies there: to fetch again would not mend that.
  void require_place(const std::string &name) const;
  // The path of a file that arrives; makes the folders that it lies in. Throws Error (EK_WRITE_FAILED), and as
  // require_place().
  std::string place(const std::string &name) const;
  // Throws Error as place().
  void write(const std::string &name, const std::string &bytes) const;

  using Listed = std::function<bool(const std::string &)>;
  // Removes of what has arrived what `listed` does not know: of another bundle, or another version. Throws Error
  // (EK_WRITE_FAILED).
  void remove_others(const Listed &listed) const;
  // Removes others, has the disk hold the folders, and puts them where the bundle is to be. Throws Error (EK_WRITE_FAILED),
  // and as require_replaceable().
  void switch_over(const Listed &listed);
  // Removes all that has arrived. Once the bundle is in its place the name is free for another fetch, whose folder stays.
  void discard() noexcept;

 private:
  bool has_mark_alone() const;

  std::filesystem::path folder_, staging_, replaced_;
  KeptFolder kept_;
};

}  // namespace edgekit

#endif  // EDGEKIT_STAGING_FOLDER_H
