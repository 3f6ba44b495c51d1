package io.edgekit;

/** Folders that tests/native/test_java.py makes; they come as system properties. */
final class Bundles {
  static final String GEMMA = System.getProperty("bundle.gemma");
  static final String LLADA = System.getProperty("bundle.llada");
  /** LLADA with a changed byte among its weights. */
  static final String DAMAGED = System.getProperty("bundle.damaged");
  /** The same without its tokenizer's files. */
  static final String BARE = System.getProperty("bundle.bare");

  /** Several bundles: one that no session runs, and LLADA. */
  static final String SEVERAL = System.getProperty("bundle.several");

  private Bundles() {}
}
