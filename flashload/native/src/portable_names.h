// Names of files that every system takes as they are: bundles are copied from one to another.
#ifndef EDGEKIT_PORTABLE_NAMES_H
#define EDGEKIT_PORTABLE_NAMES_H

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace edgekit {

// What keeps a relative path with forward slashes from being such a name, for people; empty where nothing does. Systems
// store letters beyond ASCII in different ways, and take two of them for one or not, so there are none.
std::string_view portable_fault(std::string_view path) noexcept;

// ASCII letters as small ones.
std::string small_letters(std::string_view text);

// A list of such paths, no two of which are one where capital letters do not count, or need one name for a file and a
// folder.
class PortableNames {
 public:
  // Empty, or the path from before that it does not go with.
  std::string add(const std::string &path);

 private:
  struct Part {
    std::string name, first;  // as it is written, and the path that came with it
    bool is_file;
  };
  std::vector<Part> parts_;
  // By the number of the folder, 0 for the root, and small letters.
  std::map<std::pair<std::size_t, std::string>, std::size_t> places_;
};

}  // namespace edgekit

#endif  // EDGEKIT_PORTABLE_NAMES_H
