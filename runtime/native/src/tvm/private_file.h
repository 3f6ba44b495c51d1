// A file of this process alone, for what a system opens by its path.
#ifndef EDGEKIT_TVM_PRIVATE_FILE_H
#define EDGEKIT_TVM_PRIVATE_FILE_H

#include <string>

namespace edgekit::tvm {

// In the folder for temporary files, under a name that no other has had meanwhile. A library that is loaded from it is of
// exactly these bytes: nobody writes to it afterwards, and loaders do not take it for one of an earlier file at its path.
class PrivateFile {
 public:
  // The name ends with `suffix`. Throws Error (EK_OPEN_FAILED).
  PrivateFile(const std::string &bytes, const std::string &suffix);
  ~PrivateFile();
  PrivateFile(const PrivateFile &) = delete;
  PrivateFile &operator=(const PrivateFile &) = delete;

  const std::string &path() const noexcept { return path_; }

  // Takes the name away, where the system lets go of a file that is in use; else the destructor does.
  void remove() noexcept;

 private:
  std::string path_;
};

}  // namespace edgekit::tvm

#endif  // EDGEKIT_TVM_PRIVATE_FILE_H
