#!/usr/bin/env bash
# Builds CEdgeKit.xcframework beside this script: the native core as a static library for iOS, its simulator and macOS
# (arm64 each), with edgekit.h and a module map. Needs a Mac with Xcode, CMake and Ninja.
#
#   ./build-xcframework.sh [BUILD_FOLDER]        (default: ../../build/apple)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-$root/build/apple}
framework=$here/CEdgeKit.xcframework
# The package's minimum versions, see Package.swift.
ios=18.0
macos=15.0

die() {
  echo "build-xcframework.sh: error: $*" >&2
  exit 2
}

[[ $(uname -s) == Darwin ]] || die "an XCFramework is made by xcodebuild: run this on a Mac"
for tool in cmake ninja xcodebuild xcrun; do
  command -v "$tool" >/dev/null || die "$tool is not installed"
done

# NAME SYSTEM SDK MINIMUM: the library of one platform in $build/NAME.
build_platform() {
  local name=$1 system=$2 sdk=$3 minimum=$4
  local folder=$build/$name
  # CMake leaves CMAKE_SYSTEM_PROCESSOR empty for iOS; the sources choose their instruction sets by it.
  # Test programs of CMake's checks would need signing, hence static libraries.
  cmake -G Ninja -S "$root" -B "$folder" \
    -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_SYSTEM_NAME="$system" \
    -DCMAKE_SYSTEM_PROCESSOR=arm64 \
    -DCMAKE_OSX_SYSROOT="$(xcrun --sdk "$sdk" --show-sdk-path)" \
    -DCMAKE_OSX_ARCHITECTURES=arm64 \
    -DCMAKE_OSX_DEPLOYMENT_TARGET="$minimum" \
    -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY
  cmake --build "$folder" --target edgekit_static
}

build_platform ios iOS iphoneos "$ios"
build_platform simulator iOS iphonesimulator "$ios"
build_platform macos Darwin macosx "$macos"

# The one header of the repository, and a module map that names it in place.
headers=$build/include
rm -rf "$headers"
mkdir -p "$headers/CEdgeKit"
cp "$root/flashload/native/include/edgekit.h" "$headers/CEdgeKit/"
printf 'module CEdgeKit {\n  header "edgekit.h"\n  export *\n}\n' >"$headers/CEdgeKit/module.modulemap"

libraries=()
for name in ios simulator macos; do
  libraries+=(-library "$build/$name/libedgekit_core.a" -headers "$headers")
done
rm -rf "$framework"
xcodebuild -create-xcframework "${libraries[@]}" -output "$framework"
echo "$framework"
