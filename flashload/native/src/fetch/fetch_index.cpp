// What a fetch asks for first: the manifest, or bundles.json and the manifest of the bundle that is chosen there.
#include <algorithm>
#include <filesystem>

#include "bundle_folder.h"
#include "fetch/fetch.h"
#include "portable_names.h"
#include "printable.h"
#include "xxh3.h"

namespace edgekit {
namespace {

namespace fs = std::filesystem;

// A manifest that comes with other bytes so many times is so.
constexpr int kMostDamagedIndex = 3;
// No disk has as many, and no sum of those that are less overflows.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 61;
// For folders, and what other programs write meanwhile.
constexpr std::uint64_t kRoomLeft = std::uint64_t{32} << 20;

std::string sha256_of(const std::string &text) {
  Sha256 digest;
  digest.update(text.data(), text.size());
  return digest.hex();
}

std::string gigabytes(std::uint64_t count) {
  std::ostringstream text;
  text.precision(3);
  if (count >= 1'000'000'000) {
    text << static_cast<double>(count) / 1e9 << " GB";
  } else {
    text << (count + 999'999) / 1'000'000 << " MB";
  }
  return text.str();
}

// Empty where the manifest names none.
std::string format_of(const Json &root) {
  const Json *format = root.at("programs").find("format");
  return format != nullptr && format->kind() == Json::Kind::string ? format->string() : std::string();
}

}  // namespace

std::string Fetch::index_name() const {
  if (index_ == Index::set) return kBundleSetName;
  return index_ == Index::member ? member_ + kManifestName : kManifestName;
}

FetchStep Fetch::next_of_index(FetchRequest &request) {
  if (!open_.empty()) return FetchStep::wait;
  std::optional<std::size_t> source = sources_.pick(index_lacks_);
  if (!source && index_ == Index::manifest) {
    index_ = Index::set;
    index_lacks_ = 0;
    source = sources_.pick(0);
  }
  if (!source) {
    const std::string asked = index_ == Index::set ? std::string(kManifestName) + " nor " + kBundleSetName : index_name();
    fail(EK_FETCH_FAILED, sources_.name(0), index_ == Index::set ? ": has neither " : ": lacks ", asked,
         "; give the address of the folder that a bundle lies in");
  }
  request = open_request(nullptr, *source, {}, {}, nullptr);
  return FetchStep::ask;
}

void Fetch::take_index(std::size_t source, const std::string &text) {
  const std::string where = sources_.name(source) + ": " + index_name();
  try {
    if (index_ == Index::set) {
      take_set(text, where);
    } else {
      take_manifest(text, where);
    }
    sources_.gave(source);
  } catch (const Error &error) {
    const bool may_be_damage = error.status() == EK_CHECKSUM_MISMATCH || error.status() == EK_MALFORMED_FILE;
    if (!may_be_damage || (sources_.usable() == 1 && ++index_damaged_ >= kMostDamagedIndex)) throw;
    ++progress_.damaged;
    if (sources_.usable() > 1) sources_.drop(source, error.what());
  }
}

void Fetch::take_set(const std::string &text, const std::string &where) {
  if (!options_.sha256.empty() && sha256_of(text) != options_.sha256) {
    fail(EK_CHECKSUM_MISMATCH, where, ": has SHA-256 ", sha256_of(text), ", expected ", options_.sha256,
         "; these are other bundles than were asked for");
  }
  set_ = parse_bundle_set(text, where);
  const BundleSetMember *like_here = options_.keep_format ? member_like_here(where) : nullptr;
  const BundleSetMember &chosen = like_here != nullptr ? *like_here : choose_member(set_, options_.runner, where, false);
  manifest_of(set_, chosen, where);
  progress_.kept_format = like_here != nullptr;
  chosen_ = chosen.path;
  member_ = chosen.path + "/";
  index_ = Index::member;
  index_lacks_ = 0;
}

// That of the set with the format of the bundle in the folder; null where the folder has none, or the set has none for it.
const BundleSetMember *Fetch::member_like_here(const std::string &where) const {
  try {
    BundleFolder here(staging_.folder());
    BundleRunner alike = options_.runner;
    alike.formats = {format_of(here.take_root())};
    return &choose_member(set_, alike, where, false);
  } catch (const Error &) {
    return nullptr;
  }
}

void Fetch::require_format(const BundleManifest &manifest, const std::string &where) const {
  const std::string own = format_of(manifest.root);
  if (own.empty() || options_.runner.has_format(own)) return;
  fail(EK_UNSUPPORTED_BUNDLE, where, ": is for ", in_quotes(own, 40), ", not ", joined(options_.runner.formats, "or"),
       ", and the only bundle there; ask for that, or give another source");
}

void Fetch::take_manifest(const std::string &text, const std::string &where) {
  if (index_ == Index::member) {
    const BundleFile &entry = *set_.find(index_name());
    if (text.size() != entry.size || xxh3_64(text.data(), text.size()) != entry.xxh3 || sha256_of(text) != entry.sha256) {
      fail(EK_CHECKSUM_MISMATCH, where, ": is not the manifest that ", kBundleSetName, " lists; the folder has to be put there again");
    }
  }
  const BundleManifest manifest = parse_manifest(text, where);
  const std::string seal = text.substr(kSealStart.size(), kSealDigits);
  if (index_ == Index::manifest && !options_.sha256.empty() && seal != options_.sha256) {
    fail(EK_CHECKSUM_MISMATCH, where, ": begins with SHA-256 ", seal, ", expected ", options_.sha256,
         "; it is another bundle than was asked for");
  }
  if (options_.only_formats && index_ == Index::manifest) require_format(manifest, where);
  manifest_ = text;
  const WeightsFile &weights = manifest.weights;
  std::uint64_t total = 0;
  const auto add = [&](std::uint64_t size) {
    if (size > kMostBytes - total) {
      fail(EK_MALFORMED_FILE, where, ": lists more bytes than any disk has; export the bundle again");
    }
    total += size;
  };
  add(weights.size);
  for (const BundleFile &file : manifest.files) add(file.size);
  progress_.total = total;
  if (!options_.compare && is_current(manifest)) {
    progress_.current = true;
    progress_.whole = progress_.total;
    index_ = Index::known;
    return;
  }
  names_ = {kManifestName, weights.name};
  for (const BundleFile &file : manifest.files) names_.insert(file.name);
  for (const std::string &name : names_) {
    if (small_letters(name).rfind(".edgekit-", 0) != 0) continue;
    fail(EK_MALFORMED_FILE, where, ": lists ", in_quotes(name), ", a name of edgekit's own");
  }
  staging_.require_replaceable();
  staging_.remove_others([this](const std::string &name) { return names_.count(name) != 0; });
  require_room(manifest);
  if (staging_.has_bundle()) kept_ = KeptPieces(staging_.folder());
  for (const BundleFile &file : manifest.files) {
    files_.emplace_back();
    files_.back().name = file.name;
    files_.back().size = file.size;
    files_.back().xxh3 = file.xxh3;
    files_.back().sha256 = file.sha256;
  }
  files_.emplace_back();  // last: those who wait see small files at once
  files_.back().name = weights.name;
  files_.back().size = weights.size;
  files_.back().xxh3 = weights.header.xxh3;
  files_.back().sha256 = weights.sha256;
  files_.back().header = weights.header.size;
  for (File &file : files_) file.remote = member_ + file.name;
  index_ = Index::known;
}

// Whether the bundle in the folder has the same manifest, and files of the sizes that it lists.
bool Fetch::is_current(const BundleManifest &manifest) const {
  try {
    const BundleFolder bundle(staging_.folder());
    if (bundle.text() != manifest_) return false;
  } catch (const Error &) {
    return false;
  }
  const auto has = [this](const std::string &name, std::uint64_t size) {
    std::error_code error;
    return fs::file_size(fs::u8path(staging_.folder()) / fs::u8path(name), error) == size && !error;
  };
  for (const BundleFile &file : manifest.files) {
    if (!has(file.name, file.size)) return false;
  }
  return has(manifest.weights.name, manifest.weights.size);
}

void Fetch::require_room(const BundleManifest &manifest) const {
  const std::uint64_t room = staging_.room();
  std::uint64_t lacks = 0;
  const auto add = [&](const std::string &name, std::uint64_t size) { lacks += size - std::min(size, staging_.taken(name)); };
  add(manifest.weights.name, manifest.weights.size);
  for (const BundleFile &file : manifest.files) add(file.name, file.size);
  if (lacks == 0 || lacks + kRoomLeft <= room) return;
  const std::uint64_t usable = room - std::min(room, kRoomLeft);
  fail(EK_WRITE_FAILED, staging_.folder(), ": ", gigabytes(lacks), " of the bundle have to come, and its disk has room for ",
       gigabytes(usable), ": ", gigabytes(room), " are free", staging_.has_bundle() ? " beside the bundle that is there" : "",
       ", and ", gigabytes(kRoomLeft), " have to stay so; delete or move other files, or give a folder on another disk");
}

}  // namespace edgekit
