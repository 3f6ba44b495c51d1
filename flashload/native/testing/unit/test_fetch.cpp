// Bundles that arrive: sets of bytes against plain lists of them, answers of servers, and whole fetches on several threads
// from servers that fail at random.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bundle_folder.h"
#include "fetch/byte_ranges.h"
#include "fetch/fetch.h"
#include "fetch/http_answer.h"
#include "flash_fixtures.h"
#include "manifest_reader.h"
#include "scratch.h"
#include "sha256.h"
#include "unit.h"
#include "xxh3.h"

namespace edgekit {
namespace {

namespace fs = std::filesystem;
using edgekit_testing::Scratch;
using edgekit_testing::TemporaryFile;

EK_TEST(byte_ranges_are_sets_of_bytes) {
  constexpr std::uint64_t kBytes = 64;
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    ByteRanges found;
    std::vector<bool> expected(kBytes);
    for (int change = 0; change < 30; ++change) {
      const std::uint64_t begin = random() % kBytes, end = begin + random() % (kBytes - begin + 1);
      const bool adds = random() % 2 == 0;
      adds ? found.add({begin, end}) : found.remove({begin, end});
      for (std::uint64_t i = begin; i < end; ++i) expected[i] = adds;
      std::vector<bool> seen(kBytes);
      std::uint64_t last = 0, count = 0;
      found.visit({0, kBytes}, [&](ByteRange part) {
        EK_CHECK(part.begin < part.end && (last == 0 || part.begin > last));  // none touches another
        last = part.end;
        for (std::uint64_t i = part.begin; i < part.end; ++i, ++count) seen[i] = true;
      });
      EK_CHECK(seen == expected && found.bytes() == count && found.end() == last && found.empty() == (count == 0));
      const std::uint64_t from = random() % kBytes, to = from + random() % (kBytes - from + 1);
      bool any = false, all = true;
      for (std::uint64_t i = from; i < to; ++i) {
        any = any || expected[i];
        all = all && expected[i];
      }
      EK_CHECK(found.holds({from, to}) == all && found.overlaps({from, to}) == any);
      const ByteRange first = found.first(5);
      EK_CHECK(first.bytes() <= 5 && found.holds(first) && first.empty() == found.empty());
    }
  }
}

EK_TEST(answers_of_servers_are_compared_with_what_was_asked_for) {
  const ByteRange asked{100, 200};
  struct Case {
    int status;
    const char *range;
    HttpAnswer answer;
  };
  const Case cases[] = {
      {206, "bytes 100-199/1000", HttpAnswer::part}, {206, "Bytes 100-199/*", HttpAnswer::part},
      {206, "bytes 100-149/1000", HttpAnswer::part},  {206, "bytes 0-199/1000", HttpAnswer::later},
      {206, "bytes 100-200/1000", HttpAnswer::part}, {206, "bytes 101-199/1000", HttpAnswer::later},
      {206, "bytes 100-199/999", HttpAnswer::other},  {206, "bytes 100-199/150", HttpAnswer::other},
      {206, "", HttpAnswer::later},                   {206, "bytes */1000", HttpAnswer::later},
      {206, "bytes 199-100/1000", HttpAnswer::later}, {206, "bytes 100-199/1000 ", HttpAnswer::later},
      {206, "bytes 0-1/2", HttpAnswer::other},        {416, "", HttpAnswer::other},
      {206, "bytes=100-199/1000", HttpAnswer::later}, {206, "items 100-199/1000", HttpAnswer::later},
      {206, "bytes 199-100/999", HttpAnswer::other},  {206, "bytes 100-1000/1000", HttpAnswer::later},
      {206, "bytes 100-99999999999999999999/1000", HttpAnswer::later},
      {200, "", HttpAnswer::whole},   {404, "", HttpAnswer::missing}, {410, "", HttpAnswer::missing},
      {403, "", HttpAnswer::never},   {401, "", HttpAnswer::never},   {400, "", HttpAnswer::never},
      {302, "", HttpAnswer::never},   {204, "", HttpAnswer::never},   {416, "bytes */50", HttpAnswer::other},
      {429, "", HttpAnswer::later},   {500, "", HttpAnswer::later},   {503, "", HttpAnswer::later},
      {-1, "", HttpAnswer::never},    {0, "", HttpAnswer::never},
  };
  for (const Case &each : cases) {
    const HttpAnswerFound found = read_http_answer(each.status, each.range, asked, 1000);
    EK_CHECK(found.answer == each.answer);
    EK_CHECK(found.why.empty() == (each.answer == HttpAnswer::part || each.answer == HttpAnswer::whole));
  }
  EK_CHECK(read_http_answer(206, "bytes 0-99/100", {}, 0).answer == HttpAnswer::later);  // the whole file was asked for
  EK_CHECK(read_http_answer(416, "", {}, 0).answer == HttpAnswer::never);
}

std::string read_file(const fs::path &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string sha256_of(const std::string &data) {
  Sha256 digest;
  digest.update(data.data(), data.size());
  return digest.hex();
}

// A bundle in memory: weights, a file in a folder, and an empty one.
struct Served {
  explicit Served(const std::vector<int> &pages) {
    const TemporaryFile weights(pages);
    const std::string data = read_file(fs::u8path(weights.path()));
    files = {{"weights.bin", data}, {"a/tokenizer.json", std::string(3000, 'x')}, {"empty", ""}};
    std::string list;
    for (const auto &[name, text] : files) {
      if (name == "weights.bin") continue;
      list += (list.empty() ? "" : ",") + ("\"" + name) + "\":{\"size\":" + std::to_string(text.size()) + ",\"sha256\":\"" +
              sha256_of(text) + "\",\"xxh3\":\"" + hex64(xxh3_64(text.data(), text.size())) + "\"}";
    }
    std::string text(kSealStart);
    text.append(kSealDigits, '0');
    text += "\",\"schema_version\":2,\"model\":{},\"programs\":{},\"layers\":[],\"sampler\":{},\"quantization\":{},"
            "\"provenance\":{},\"weights\":{\"file\":\"weights.bin\",\"size\":" + std::to_string(data.size()) +
            ",\"sha256\":\"" + sha256_of(data) + "\",\"header_size\":" + std::to_string(edgekit_testing::kPage) +
            ",\"header_xxh3\":\"" + hex64(xxh3_64(data.data(), edgekit_testing::kPage)) + "\"},\"files\":{" + list + "}}";
    text.replace(kSealStart.size(), kSealDigits, manifest_seal(text));
    files.emplace_back(kManifestName, text);
  }
  const std::string &at(const std::string &name) const {
    for (const auto &[own, text] : files) {
      if (own == name) return text;
    }
    throw edgekit_testing::Failed("asked for " + name);
  }
  std::vector<std::pair<std::string, std::string>> files;
};

// Answers one request, which may fail in any way: cut, damaged, refused, or with another range.
void answer(Fetch &fetch, const FetchRequest &request, const Served &served, std::mt19937 &random, bool fails) {
  const std::string &file = served.at(request.name);
  const bool whole = request.range.empty();
  const unsigned fault = fails ? random() % 8 : 99;
  if (fault == 0) return fetch.fail_request(request.id, "was broken by the test");
  if (!whole) {
    const bool lies = fault == 1;
    const std::string range = "bytes " + std::to_string(request.range.begin + (lies ? 1 : 0)) + "-" +
                              std::to_string(request.range.end - 1) + "/" + std::to_string(file.size());
    try {
      fetch.answer(request.id, fault == 2 ? 503 : fault == 6 ? 200 : 206, range);
    } catch (const Error &error) {
      EK_CHECK(error.status() == EK_FETCH_FAILED && (lies || fault == 2));
      return fetch.end(request.id);  // of a request that is over
    }
    if (lies || fault == 2) return fetch.end(request.id);  // another answer has ended it
  }
  // From its beginning, as by a server without ranges.
  std::string body = whole || fault == 6 ? file : file.substr(request.range.begin, request.range.bytes());
  if (fault == 3 && !body.empty()) body[random() % body.size()] ^= 1;
  if (fault == 4) body.resize(random() % (body.size() + 1));
  if (fault == 5 && !whole) body += "surplus";
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t count = std::min<std::size_t>(body.size() - at, 1 + random() % 9000);
    if (!fetch.write(request.id, body.data() + at, count)) break;
    at += count;
  }
  fetch.end(request.id);
}

// Whether it came to its end; false: every source was left.
bool run(Fetch &fetch, const Served &served, int threads, unsigned seed, bool fails) {
  std::atomic<bool> failed{false};
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      std::mt19937 random(seed * 31 + static_cast<unsigned>(i));
      try {
        while (!failed) {
          FetchRequest request;
          const FetchStep step = fetch.next(request);
          if (step == FetchStep::ready) return;
          if (step == FetchStep::ask) answer(fetch, request, served, random, fails && random() % 3 == 0);
          if (step == FetchStep::wait) std::this_thread::yield();
          (void)fetch.progress();
        }
      } catch (const Error &) {
        failed = true;
      }
    });
  }
  for (std::thread &worker : workers) worker.join();
  return !failed;
}

FetchOptions from(std::size_t sources) {
  FetchOptions options;
  for (std::size_t i = 0; i < sources; ++i) options.sources.push_back("source " + std::to_string(i));
  options.request_bytes = 64 * 1024;
  return options;
}

void check_arrived(const fs::path &folder, const Served &served) {
  std::size_t count = 0;
  for (const fs::directory_entry &entry : fs::recursive_directory_iterator(folder)) count += entry.is_regular_file();
  EK_CHECK(count == served.files.size());
  for (const auto &[name, text] : served.files) EK_CHECK(read_file(folder / fs::u8path(name)) == text);
  const BundleFolder bundle(folder.u8string());
  bundle.check("a/tokenizer.json");
}

EK_TEST(fetches_on_several_threads_from_servers_that_fail) {
  const Served served({3, 1, 9, 2, 1, 17, 4});
  for (unsigned seed = 0; seed < 12; ++seed) {
    const Scratch scratch;
    const fs::path folder = scratch.path() / "bundle";
    for (int attempt = 0;; ++attempt) {
      EK_CHECK(attempt < 50);
      Fetch fetch(folder.u8string(), from(1 + seed % 3));
      if (!run(fetch, served, 1 + static_cast<int>(seed % 4), seed * 100 + static_cast<unsigned>(attempt), attempt < 20)) {
        EK_CHECK(!fs::exists(folder));
        continue;
      }
      fetch.finish();
      EK_CHECK(edgekit_testing::status_of([&] { fetch.finish(); }) == EK_INVALID_STATE);
      break;
    }
    check_arrived(folder, served);
    EK_CHECK(std::distance(fs::directory_iterator(scratch.path()), {}) == 1);
  }
}

// Threads that give one request different bytes, end it and give it back, while others bring what it lacked: what is whole
// is right.
EK_TEST(several_threads_may_use_one_request) {
  const Served served({3, 1, 9});
  std::atomic<int> meddled{0};
  int wholes = 0;
  // How threads are scheduled decides what they meet: as many times as it takes to meet both.
  for (unsigned seed = 0; seed < 30 || (seed < 1000 && !(meddled > 0 && wholes > 0)); ++seed) {
    const Scratch scratch;
    const fs::path folder = scratch.path() / "bundle";
    Fetch fetch(folder.u8string(), from(4));
    std::atomic<std::uint64_t> shared{0};
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        std::mt19937 random(seed * 7 + i);
        const std::string garbage(3000, static_cast<char>('a' + i));
        try {
          while (!over) {
            const std::uint64_t id = shared;
            switch (random() % 6) {
              case 0: fetch.give_back(id); break;
              case 1: fetch.fail_request(id, "was meddled with"); break;
              case 2: fetch.end(id); break;
              default: meddled += fetch.write(id, garbage.data(), random() % garbage.size());
            }
            std::this_thread::yield();
          }
        } catch (const Error &) {
          // Three times damaged, from each source.
        }
      });
    }
    bool whole = true;
    try {
      for (int step = 0; step < 3000; ++step) {
        FetchRequest request;
        const FetchStep found = fetch.next(request);
        if (found == FetchStep::ready) break;
        if (found != FetchStep::ask) continue;
        if (!request.range.empty()) shared = request.id;  // not of the manifest, which would be another one
        const std::string &file = served.at(request.name);
        const std::string body =
            request.range.empty() ? file : file.substr(request.range.begin, request.range.bytes());
        for (std::size_t at = 0; at < body.size(); at += 5000) {
          if (!fetch.write(request.id, body.data() + at, std::min<std::size_t>(5000, body.size() - at))) break;
          if (seed % 3 != 0) std::this_thread::yield();
        }
        fetch.end(request.id);
      }
      over = true;
      fetch.finish();
    } catch (const Error &) {
      whole = false;
    }
    over = true;
    for (std::thread &thread : threads) thread.join();
    EK_CHECK(fs::exists(folder) == whole);
    if (whole) check_arrived(folder, served);
    wholes += whole;
  }
  EK_CHECK(meddled > 0 && wholes > 0);
}

EK_TEST(what_has_arrived_and_was_taken_away_is_missed) {
  const Served served({3, 1});
  for (const char *gone : {"weights.bin", "a/tokenizer.json", "a", "empty", ""}) {
    const Scratch scratch;
    const fs::path folder = scratch.path() / "bundle";
    {
      Fetch fetch(folder.u8string(), from(1));
      EK_CHECK(run(fetch, served, 1, 1, false));
      fs::remove_all(fs::u8path(fetch.staging()) / gone);
      EK_CHECK(edgekit_testing::status_of([&] { fetch.finish(); }) == EK_WRITE_FAILED);
      EK_CHECK(!fs::exists(folder));
    }
    Fetch fetch(folder.u8string(), from(1));
    EK_CHECK(run(fetch, served, 1, 1, false));
    fetch.finish();
    check_arrived(folder, served);
  }
}

EK_TEST(a_folder_that_is_taken_away_keeps_no_other_fetch_from_it) {
  const Served served({3, 1});
  const Scratch scratch;
  const fs::path folder = scratch.path() / "bundle";
  {
    Fetch fetch(folder.u8string(), from(1));
    FetchRequest request;
    EK_CHECK(fetch.next(request) == FetchStep::ask);
    std::mt19937 random(1);
    answer(fetch, request, served, random, false);
    fs::remove_all(fs::u8path(fetch.staging()));
    EK_CHECK(edgekit_testing::status_of([&] { fetch.next(request); }) == EK_WRITE_FAILED);
  }
  EK_CHECK(fs::is_empty(scratch.path()));
  Fetch fetch(folder.u8string(), from(1));
  EK_CHECK(run(fetch, served, 1, 1, false));
  fetch.finish();
  check_arrived(folder, served);
}

// As when an application makes the fetch of an update before it lets go of the one that is through.
EK_TEST(a_fetch_that_is_through_leaves_the_folder_of_the_next_one) {
  const Served before({3, 1}), after({3, 1, 5});
  for (const bool current : {false, true}) {
    const Scratch scratch;
    const fs::path folder = scratch.path() / "bundle";
    for (int time = 0; time < (current ? 2 : 1); ++time) {
      auto first = std::make_unique<Fetch>(folder.u8string(), from(1));
      EK_CHECK(run(*first, before, 1, 1, false));
      first->finish();
      EK_CHECK(first->progress().current == (time == 1));
      if (time == 0 && current) continue;
      Fetch next(folder.u8string(), from(1));
      first->discard();
      first.reset();
      EK_CHECK(fs::exists(fs::u8path(next.staging())));
      EK_CHECK(run(next, after, 1, 1, false));
      next.finish();
      check_arrived(folder, after);
    }
  }
}

EK_TEST(an_update_takes_what_has_not_changed) {
  const Served before({3, 1, 9}), after({3, 1, 9, 5});
  const Scratch scratch;
  const fs::path folder = scratch.path() / "bundle";
  for (const Served *served : {&before, &after, &after}) {
    Fetch fetch(folder.u8string(), from(1));
#if !defined(_WIN32)  // which keeps nobody out
    EK_CHECK(edgekit_testing::status_of([&] { Fetch(folder.u8string(), from(1)); }) == EK_INVALID_STATE);
#endif
    EK_CHECK(edgekit_testing::status_of([&] { fetch.finish(); }) == EK_INVALID_STATE);
    EK_CHECK(run(fetch, *served, 2, 1, false));
    const FetchProgress progress = fetch.progress();
    EK_CHECK(progress.whole == progress.total && progress.requests == 0 && progress.damaged == 0);
    fetch.finish();
    check_arrived(folder, *served);
    if (served == &after && !progress.current) EK_CHECK(progress.copied >= 13 * edgekit_testing::kPage);
  }
}

}  // namespace
}  // namespace edgekit
