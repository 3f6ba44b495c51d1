// The bundle to open in a folder that may hold several of one model, see bundle_set.h.
#ifndef EDGEKIT_BUNDLE_CHOICE_H
#define EDGEKIT_BUNDLE_CHOICE_H

#include <string>

#include "bundle_set.h"

namespace edgekit {

// How much of a set has to be here.
enum class SetState {
  whole,
  listed,  // bundles.json alone: the rest comes later
};

// The folder itself where it is a bundle, else the folder of the first bundle of its set that `runner` runs, whose manifest
// is the one that the set lists. Throws Error: EK_OPEN_FAILED where the folder holds neither, those of parse_bundle_set,
// choose_member, manifest_of and check_folder_file.
std::string choose_bundle(const std::string &folder, const BundleRunner &runner, SetState state);

}  // namespace edgekit

#endif  // EDGEKIT_BUNDLE_CHOICE_H
