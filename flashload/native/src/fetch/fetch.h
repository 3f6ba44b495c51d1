// A bundle on its way: says which bytes of which file are to be asked for next, takes them as they come, compares every run
// and file with its digest, and puts the bundle in its place when all of it is there.
//
// It opens no connections: a transport asks it, as an engine asks a sampler. Nothing is written down about what has arrived.
// What an earlier fetch has left is found by looking for holes in its files and by comparing the rest, so no record can
// say something else than the bytes do.
//
//   manifest -> files -> header of the flash file -> its runs -> SHA-256 of each file -> ready -> finish()
#ifndef EDGEKIT_FETCH_H
#define EDGEKIT_FETCH_H

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bundle_set.h"
#include "error.h"
#include "fetch/arriving_file.h"
#include "fetch/byte_ranges.h"
#include "fetch/kept_pieces.h"
#include "fetch/pieces.h"
#include "fetch/sources.h"
#include "fetch/staging_folder.h"
#include "manifest_reader.h"
#include "sha256.h"

namespace edgekit {

struct FetchOptions {
  std::vector<std::string> sources;  // their names, for messages
  BundleRunner runner;               // which bundle of a set
  bool only_formats = false;         // a bundle that is alone has to be of the runner's formats too
  bool keep_format = false;          // of a set the bundle of the format which the one in the folder has, if the system runs it
  std::string sha256;                // that the manifest begins with, or of bundles.json; empty: any
  std::uint64_t request_bytes = std::uint64_t{8} << 20;  // the most that is asked for at once, but for what was damaged
  bool compare = false;              // a bundle that is there and has the same manifest: all of it, and mends it
};

struct FetchRequest {
  std::uint64_t id = 0;
  std::size_t source = 0;
  const char *name = nullptr;  // below the source's address; lives as long as the fetch
  ByteRange range;             // empty: the whole file, whose size is not known
  std::uint64_t size = 0;      // of the file; 0: not known
  int wait_milliseconds = 0;   // before it is asked
  // The answer has to begin within this time, and then as much has to come in each such time; else the transport ends it, so
  // that another source may give the rest.
  int patience_milliseconds = 30'000;
  int least_bytes_per_second = 1000;
};

enum class FetchStep {
  ask,      // a request is to be sent
  working,  // something was compared; call again
  wait,     // for what was asked for
  ready,    // all is here and was compared
};

struct FetchProgress {
  std::uint64_t total = 0;    // bytes of the bundle; 0: not known yet
  std::uint64_t whole = 0;    // of these, compared
  std::uint64_t arrived = 0;  // further ones that wait for the rest of their run
  std::uint64_t fetched = 0;  // given by sources
  std::uint64_t copied = 0;   // taken from the bundle that was there
  std::uint64_t found = 0;    // left by an earlier fetch
  std::int64_t damaged = 0;   // runs and files that came with other bytes
  std::int64_t requests = 0;  // that are open
  bool current = false;       // the folder had this bundle already
  bool kept_format = false;   // the bundle was chosen by the format of the one in the folder
  const char *chosen = nullptr;  // of a set, the path of its bundle; lives as long as the fetch; null: there is no set, or not yet
};

// Safe to use from several threads. Those that use one request wait for each other while its bytes are written, so that
// none are written for a request that is over.
class Fetch {
 public:
  // Throws Error: EK_INVALID_ARGUMENT, and those of StagingFolder.
  Fetch(const std::string &folder, FetchOptions options);

  // `request` is filled for `ask`. Throws Error: EK_FETCH_FAILED where no source gives what is needed,
  // EK_CHECKSUM_MISMATCH where they give other bytes, EK_WRITE_FAILED (also for a disk without the room), EK_READ_FAILED,
  // EK_OPEN_FAILED for what is no file in the place of one that arrives, EK_UNSUPPORTED_BUNDLE, EK_UNSUPPORTED_VERSION,
  // EK_INVALID_ARGUMENT. It then throws the same again.
  FetchStep next(FetchRequest &request);

  // What the server said before the first byte. Throws Error (EK_FETCH_FAILED) where the answer is of no use: the request is over.
  void answer(std::uint64_t id, int status, std::string_view content_range);
  // The next bytes. False: no more of this request are needed, it is over.
  bool write(std::uint64_t id, const void *data, std::size_t size);
  // No more bytes come. One that is over already is left alone.
  void end(std::uint64_t id);
  // It is not sent, or not to its end, for no reason of its source.
  void give_back(std::uint64_t id);
  void fail_request(std::uint64_t id, const std::string &why);

  FetchProgress progress();
  const std::string &staging() const noexcept { return staging_path_; }

  // Throws Error: EK_INVALID_STATE before next() has said that it is ready, EK_WRITE_FAILED, EK_OPEN_FAILED as next().
  void finish();
  // Removes what has arrived. Nothing else may be called behind it.
  void discard();

 private:
  enum class PieceState : std::uint8_t { unknown, missing, comparing, whole };
  struct Piece {
    PieceOfFile of;
    PieceState state = PieceState::unknown;
    SourceMask from = 0;    // that have given bytes of it
    bool has_found = false; // bytes of it are of an earlier fetch
    int damaged = 0;
  };
  struct File {
    std::string name, remote;
    std::uint64_t size = 0, xxh3 = 0;
    std::string sha256;
    std::uint64_t header = 0;  // of a flash file; 0: it is none
    bool opened = false, done = false;
    std::shared_ptr<ArrivingFile> file;
    std::deque<Piece> pieces;  // in the order of the file
    ByteRanges written;        // by an earlier fetch, of pieces that are unknown
    ByteRanges wanted;         // bytes to be asked for
    ByteRanges arrived;        // of pieces that are not whole
    std::size_t unknown = 0;   // the first piece that may be
    // Of a flash file the SHA-256 follows what is whole.
    std::size_t whole_pieces = 0;
    std::uint64_t hashed = 0;
    bool hashing = false;
    Sha256 hash;
  };
  struct Open {
    File *file = nullptr;  // null: the manifest or bundles.json
    std::size_t source = 0;
    ByteRange asked;
    ByteRanges lacking;
    std::uint64_t at = 0;  // of the byte that comes next
    Piece *again = nullptr;
    bool is_part = false;    // answered with the bytes that were asked for
    bool from_start = false;  // answered with the file from its beginning, though a part was asked for: takes what is wanted
                              // of it as it goes by
    std::uint64_t gave = 0;  // bytes of use
    bool writing = false;    // by a thread without the lock: nobody else changes it
    std::string text;
  };
  // A piece that came damaged: all of it comes from one source.
  struct Again {
    File *file = nullptr;
    Piece *piece = nullptr;
    SourceMask avoided = 0;
    std::optional<std::size_t> source;  // that has begun
    ByteRanges lacking;
  };
  enum class Index { manifest, set, member, known };
  using Lock = std::unique_lock<std::mutex>;

  // fetch_index.cpp
  FetchStep next_of_index(FetchRequest &request);
  std::string index_name() const;
  void take_index(std::size_t source, const std::string &text);
  void take_set(const std::string &text, const std::string &where);
  void take_manifest(const std::string &text, const std::string &where);
  const BundleSetMember *member_like_here(const std::string &where) const;
  void require_format(const BundleManifest &manifest, const std::string &where) const;
  bool is_current(const BundleManifest &manifest) const;
  void require_room(const BundleManifest &manifest) const;

  // fetch_requests.cpp
  std::optional<FetchRequest> find_request();
  std::optional<FetchRequest> find_again();
  FetchRequest open_request(File *file, std::size_t source, ByteRange asked, ByteRanges lacking, Piece *again);
  Open *find_open(std::uint64_t id, Lock &lock);  // null where it is over
  bool take_bytes(std::uint64_t id, const char *data, std::size_t size, Lock &lock);
  bool take_of_file(std::uint64_t id, const char *data, std::size_t size, Lock &lock);
  bool take_from_start(std::uint64_t id, const char *data, std::size_t size, Lock &lock);
  void take_as_whole(std::uint64_t id, Lock &lock);
  void close(std::uint64_t id, const std::string &why);

  // fetch_pieces.cpp
  void open_file(File &file);
  void look_for_pieces(File &file, std::size_t first);
  bool work(Lock &lock);
  void examine(File &file, Piece &piece, Lock &lock);
  void compare_arrived(File &file, Piece &piece, Lock &lock);
  void want(File &file, Piece &piece);
  void settle(File &file, Piece &piece, bool same, const std::string &sha256);
  void take_damaged(File &file, Piece &piece);
  bool roll_hash(File &file, std::uint64_t most, Lock &lock);
  void close_file(File &file, const std::string &sha256);

  static std::size_t piece_at(const File &file, std::uint64_t offset);
  void require_no_failure() const;
  // Runs `body`, whose errors end the fetch.
  template <typename Body>
  auto ending(Lock &lock, Body &&body);

  std::mutex mutex_;
  StagingFolder staging_;
  const std::string staging_path_;
  FetchOptions options_;
  FetchSources sources_;
  std::exception_ptr failure_;

  Index index_ = Index::manifest;
  SourceMask index_lacks_ = 0;
  int index_damaged_ = 0;
  BundleSet set_;
  std::string chosen_, member_;  // of a set: the folder of the bundle, and the same with a slash behind it
  std::string manifest_;  // its text
  KeptPieces kept_;

  std::deque<File> files_;
  std::unordered_set<std::string> names_;  // of files_, and the manifest's
  std::size_t wanting_ = 0;                // files before it want nothing
  std::list<Again> again_;
  std::map<std::uint64_t, Open> open_;
  std::condition_variable written_;  // one of them is written to no more, or nobody compares what is here
  std::unordered_set<std::string> asked_names_;  // of the manifests, for requests
  std::uint64_t last_id_ = 0;
  bool working_ = false, finished_ = false;
  FetchProgress progress_;
};

template <typename Body>
auto Fetch::ending(Lock &lock, Body &&body) {
  try {
    return body();
  } catch (...) {  // of memory that is gone too: what it has left half done is not gone on with
    if (!lock.owns_lock()) lock.lock();
    if (!failure_) failure_ = std::current_exception();
    written_.notify_all();
    throw;
  }
}

}  // namespace edgekit

#endif  // EDGEKIT_FETCH_H
