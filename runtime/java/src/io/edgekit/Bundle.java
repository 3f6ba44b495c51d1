package io.edgekit;

/**
 * The files of a bundle, each compared with the manifest when it is read. Sessions and tokenizers open bundles by
 * themselves; this is for what an application wants of one beyond them. Different threads may use it at the same time.
 */
public final class Bundle implements AutoCloseable {
  private final Handle handle;

  private Bundle(Handle handle) {
    this.handle = handle;
  }

  /**
   * Says whether a folder holds a bundle, or several of a model, by the names of its files alone. What arrives is no bundle
   * before {@link BundleFetch#finish}.
   *
   * @param path the folder, which need not be there
   * @return whether {@link Session#open(String)} finds something to open
   */
  public static boolean exists(String path) {
    return Native.bundleExists(Utf8.path(path));
  }

  /**
   * Opens a bundle: reads and checks its manifest alone.
   *
   * @param path its folder, or one with several bundles of a model: the first that sessions run here
   * @return the bundle, to be closed
   * @throws EdgeKitException for one that is missing, damaged, or of another version
   */
  public static Bundle open(String path) {
    return new Bundle(new Handle("bundle", Native.bundleOpen(Utf8.path(path)), Native::bundleClose));
  }

  /**
   * Gives the manifest, edgekit.json.
   *
   * @return JSON, as it was checked
   */
  public String manifest() {
    return Utf8.decode(handle.use(Native::bundleManifest));
  }

  /**
   * Reads a file that the manifest lists among its files; weights are no such file.
   *
   * @param name as the manifest has it, such as "tokenizer/tokenizer.json"
   * @return the bytes that were compared
   * @throws EdgeKitException for one that is not listed, missing or damaged, or of more than 256 MiB
   */
  public byte[] read(String name) {
    return handle.use(bundle -> Native.bundleRead(bundle, Utf8.name(name, "the name")));
  }

  /**
   * Compares a file with the manifest, for what something else opens by its path. Of the weights it compares the header:
   * the rest is compared when it is read.
   *
   * @param name as the manifest has it
   * @throws EdgeKitException as {@link #read}
   */
  public void check(String name) {
    handle.use(
        bundle -> {
          Native.bundleCheck(bundle, Utf8.name(name, "the name"));
          return null;
        });
  }

  /** Gives the bundle back; closing it again does nothing. */
  @Override
  public void close() {
    handle.close();
  }
}
