package io.edgekit;

/** Folders that tests/native/test_java.py makes; they come as system properties. */
final class Bundles {
  static final String GEMMA = System.getProperty("bundle.gemma");
  static final String LLADA = System.getProperty("bundle.llada");
  /** LLADA with a changed byte among its weights. */
  static final String DAMAGED = System.getProperty("bundle.damaged");
  /** The same without its tokenizer's files. */
  static final String BARE = System.getProperty("bundle.bare");

  /** A tokenizer alone, whose decoder takes the space in front of a text away. */
  static final String PIECES = System.getProperty("bundle.pieces");

  /** A tokenizer alone, which has bytes for most characters; its masked family's token of open places is 260. */
  static final String BYTES = System.getProperty("bundle.bytes");

  /** Several bundles: one that no session runs, and LLADA. */
  static final String SEVERAL = System.getProperty("bundle.several");

  private Bundles() {}
}
