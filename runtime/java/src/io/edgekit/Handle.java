package io.edgekit;

import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/** Something of the native library that several threads may use, and that is closed once none does. */
final class Handle {
  private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock();
  private final String name;
  private final LongConsumer closer;
  private long pointer;

  Handle(String name, long pointer, LongConsumer closer) {
    this.name = name;
    this.pointer = pointer;
    this.closer = closer;
  }

  /** Throws IllegalStateException where it is closed. */
  <T> T use(LongFunction<T> body) {
    lock.readLock().lock();
    try {
      if (pointer == 0) throw new IllegalStateException("the " + name + " is closed");
      return body.apply(pointer);
    } finally {
      lock.readLock().unlock();
    }
  }

  /** Waits for what uses it. */
  void close() {
    close(last -> {});
  }

  /** As above; `last` is what it is used for before, once, and not where it is closed. */
  void close(LongConsumer last) {
    lock.writeLock().lock();
    try {
      if (pointer == 0) return;
      try {
        last.accept(pointer);
      } finally {
        closer.accept(pointer);
        pointer = 0;
      }
    } finally {
      lock.writeLock().unlock();
    }
  }
}
