#include "bundle_choice.h"

#include <filesystem>

#include "bundle_folder.h"

namespace edgekit {

namespace fs = std::filesystem;

std::string choose_bundle(const std::string &folder, const BundleRunner &runner, SetState state) {
  if (kind_of_folder(folder) != FolderKind::set) {
    require_bundle(folder);
    return folder;
  }
  const auto below = [&folder](const std::string &name) { return (fs::u8path(folder) / fs::u8path(name)).u8string(); };
  const std::string where = below(kBundleSetName);
  const BundleSet set = parse_bundle_set(read_folder_file(folder, kBundleSetName, kMaxBundleSetBytes), where);
  const BundleSetMember &chosen = choose_member(set, runner, where);
  const BundleFile &manifest = manifest_of(set, chosen, where);
  if (state == SetState::whole) check_folder_file(folder, manifest.name, manifest.size, manifest.xxh3);
  return below(chosen.path);
}

}  // namespace edgekit
