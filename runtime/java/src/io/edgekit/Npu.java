package io.edgekit;

/**
 * Qualcomm's NPU: what sessions need for bundles of the format qnn. Its libraries are the application's, under Qualcomm's
 * terms.
 *
 * <pre>{@code
 * new Npu().load();  // once, before a session of such a bundle
 * Session session = Session.open("llada-npu");
 * }</pre>
 *
 * <p>What is not set here has its usual name, which Android finds among the libraries of the application.
 */
public final class Npu {
  private byte[] onnxRuntime, provider, backend, chip, emulated;

  /** The usual names, and the chip that Android tells. */
  public Npu() {}

  /**
   * Names ONNX Runtime's library, 1.22 or later.
   *
   * @param library its path, or a name that the system searches
   * @return this
   */
  public Npu onnxRuntime(String library) {
    onnxRuntime = Utf8.name(library, "the library");
    return this;
  }

  /**
   * Names ONNX Runtime's provider for QNN, version 2 or later.
   *
   * @param library its path, or a name that the system searches
   * @return this
   */
  public Npu provider(String library) {
    provider = Utf8.name(library, "the library");
    return this;
  }

  /**
   * Names QNN's library for the NPU.
   *
   * @param library its path, or a name that the system searches
   * @return this
   */
  public Npu backend(String library) {
    backend = Utf8.name(library, "the library");
    return this;
  }

  /**
   * Says which of the chips that a bundle was compiled for is at hand. Where it was compiled for none of that name, another
   * bundle of its set is taken, or, where it is alone, its packages are compiled when they are opened, which takes long.
   *
   * @param name such as "sm8650"
   * @return this
   */
  public Npu chip(String name) {
    chip = Utf8.name(name, "the chip");
    return this;
  }

  /**
   * Says which chip an emulation on another processor stands for.
   *
   * @param model its number among QNN's chips, such as 57
   * @return this
   */
  public Npu emulatedChip(int model) {
    emulated = Utf8.name(Integer.toString(model), "the chip");
    return this;
  }

  /**
   * Loads the libraries into the process, for good; only the first call that succeeds has an effect.
   *
   * @throws EdgeKitException OPEN_FAILED for a library that cannot be loaded, UNSUPPORTED_VERSION for one that is too old,
   *     ENGINE_FAILED where there is no NPU: then take a bundle of the format native
   */
  public void load() {
    Native.npuLoad(onnxRuntime, provider, backend, chip, emulated);
  }
}
