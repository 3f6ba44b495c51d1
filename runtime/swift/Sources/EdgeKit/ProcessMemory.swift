import CEdgeKit

/// Memory of this process.
public enum ProcessMemory {
  /// Physical memory now, which `SessionOptions.memoryBytes` bounds; nil where the system does not tell.
  public static var bytes: UInt64? {
    let bytes = ek_process_bytes()
    return bytes == 0 ? nil : bytes
  }
}
