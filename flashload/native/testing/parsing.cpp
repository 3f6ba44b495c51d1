// The parsers, the hash and the residency plan, for tests in Python. Each function returns a status; the answer, or
// the message of an error, is read with ekt_parsing_text as JSON text.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "edgekit.h"
#include "error.h"
#include "flash_layout.h"
#include "json.h"
#include "manifest_reader.h"
#include "printable.h"
#include "sha256.h"
#include "xxh3.h"
#include "xxh3_kernels.h"

namespace {

using edgekit::Json;

thread_local std::string answer;

template <typename Function>
ek_status guarded(Function function) {
  try {
    answer.clear();
    function();
    return EK_OK;
  } catch (const edgekit::Error &error) {
    answer = error.what();
    return error.status();
  } catch (const std::exception &error) {
    answer = error.what();
    return EK_INTERNAL;
  }
}

void put_string(const std::string &text) {
  answer += '"';
  for (const char letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == '"' || letter == '\\') {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(letter));
      answer += escape;
    } else {
      answer += letter;
    }
  }
  answer += '"';
}

// Values that Python's reader could change come in a form that it cannot: {"number": hex} and {"object": [[k, v]]}.
void put(const Json &value) {
  switch (value.kind()) {
    case Json::Kind::null:
      answer += "null";
      return;
    case Json::Kind::boolean:
      answer += value.boolean() ? "true" : "false";
      return;
    case Json::Kind::integer:
      answer += std::to_string(value.integer());
      return;
    case Json::Kind::number: {
      char text[64] = "too large";
      try {
        std::snprintf(text, sizeof text, "%a", value.number());
      } catch (const edgekit::Error &) {
        // the text says it
      }
      answer += std::string("{\"number\": \"") + text + "\"}";
      return;
    }
    case Json::Kind::string:
      return put_string(value.string());
    case Json::Kind::array: {
      const char *before = "[";
      for (const Json &item : value.array()) {
        answer += before;
        put(item);
        before = ", ";
      }
      answer += value.array().empty() ? "[]" : "]";
      return;
    }
    case Json::Kind::object: {
      answer += "{\"object\": [";
      const char *before = "";
      for (const auto &[key, item] : value.object()) {
        answer += std::string(before) + "[";
        put_string(key);
        answer += ", ";
        put(item);
        answer += "]";
        before = ", ";
      }
      answer += "]}";
      return;
    }
  }
}

std::string number(std::uint64_t value) { return std::to_string(value); }

}  // namespace

extern "C" {

EK_API const char *ekt_parsing_text(std::size_t *size) {
  *size = answer.size();
  return answer.data();
}

// 0 when this machine has no such loop.
EK_API int ekt_xxh3(const char *loop, const void *data, std::size_t size, std::uint64_t *out) {
  const edgekit::Xxh3Loop found = edgekit::xxh3_find_loop(loop);
  if (found == nullptr) return 0;
  *out = *loop == '\0' ? edgekit::xxh3_64(data, size) : edgekit::xxh3_64_with(found, data, size);
  return 1;
}

EK_API int ekt_is_printable(std::uint32_t code_point) { return edgekit::is_printable(code_point); }

EK_API ek_status ekt_json(const char *text, std::size_t size) {
  return guarded([&] { put(Json::parse({text, size}, "text")); });
}

// `bytes`: the first `size` bytes of a file of `file_size`, with its whole header when it has one.
EK_API ek_status ekt_flash_layout(const char *bytes, std::size_t size, std::uint64_t file_size) {
  return guarded([&] {
    const std::string_view file(bytes, size);
    const std::uint64_t length = edgekit::flash_header_length(file.substr(0, 64), file_size, "f");
    const edgekit::FlashLayout layout = edgekit::parse_flash_header(file.substr(8, length), file_size, "f");
    answer = "{\"size\": " + number(layout.size) + ", \"data_start\": " + number(layout.data_start) + ", \"plan\": ";
    put_string(layout.plan);
    answer += ", \"runs\": [";
    for (const edgekit::Run &run : layout.runs) {
      if (&layout.run(run.name) != &run) throw std::logic_error("the index finds another run");
      answer += &run == layout.runs.data() ? "[" : ", [";
      put_string(run.name);
      answer += ", " + number(run.offset) + ", " + number(run.length) + ", " + number(run.xxh3) + ", [";
      for (const edgekit::Tensor &tensor : run.tensors) {
        if (run.find(tensor.name) != &tensor) throw std::logic_error("find gives another tensor");
        answer += &tensor == run.tensors.data() ? "[" : ", [";
        put_string(tensor.name);
        answer += ", ";
        put_string(tensor.dtype);
        answer += ", [";
        for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
          answer += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
        }
        answer += "], " + number(tensor.offset) + ", " + number(tensor.bytes) + ", ";
        put_string(tensor.full_name);
        answer += "]";
      }
      answer += "], [";
      for (const edgekit::FlashSegment &part : run.segments) {
        answer += &part == run.segments.data() ? "[" : ", [";
        answer += number(part.offset) + ", " + number(part.place) + ", " + number(part.bytes) + ", " + number(part.xxh3);
        answer += "]";
      }
      answer += "]]";
    }
    answer += "]}";
  });
}

}  // extern "C"

namespace {

void put_manifest(const edgekit::BundleManifest &manifest) {
  answer = "{\"weights\": [";
  put_string(manifest.weights.name);
  answer += ", " + number(manifest.weights.size) + ", ";
  put_string(manifest.weights.sha256);
  answer += ", " + number(manifest.weights.header.size) + ", " + number(manifest.weights.header.xxh3);
  answer += "], \"files\": [";
  const char *before = "[";
  for (const edgekit::BundleFile &file : manifest.files) {
    answer += before;
    put_string(file.name);
    answer += ", " + number(file.size) + ", ";
    put_string(file.sha256);
    answer += ", " + number(file.xxh3) + "]";
    before = ", [";
  }
  answer += "], \"root\": ";
  put(manifest.root);
  answer += "}";
}

}  // namespace

extern "C" {

EK_API ek_status ekt_manifest(const char *text, std::size_t size) {
  return guarded([&] { put_manifest(edgekit::parse_manifest({text, size}, "m")); });
}

// The digests of `size` bytes that are taken in parts of `part`; `hex` gets 64 digits.
EK_API std::uint64_t ekt_digests(const char *data, std::size_t size, std::size_t part, char *hex) {
  edgekit::Sha256 sha256;
  edgekit::Xxh3 xxh3;
  for (std::size_t at = 0; at < size; at += part) {
    const std::size_t count = std::min(part, size - at);
    sha256.update(data + at, count);
    xxh3.update(data + at, count);
  }
  sha256.hex().copy(hex, 64);
  return xxh3.digest();
}

}  // extern "C"
