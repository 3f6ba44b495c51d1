package io.edgekit;

import java.util.ArrayList;
import java.util.List;

/**
 * Fetches into a folder what Python serves, and prints how it ended: "FOLDER [NAME=VALUE...] SOURCE...". `until` is a number of
 * bytes to cancel at, `finish=false` leaves the last step out, `patience` is a share of the time that answers have.
 */
final class FetchLines {
  public static void main(String[] arguments) {
    List<String> sources = new ArrayList<>();
    String sha256 = null;
    boolean compare = false;
    boolean keepFormat = false;
    boolean finish = true;
    int connections = 4;
    long until = Long.MAX_VALUE;
    for (int at = 1; at < arguments.length; ++at) {
      String value = arguments[at].replaceFirst("^[a-z0-9]+=", "");
      switch (arguments[at].substring(0, arguments[at].length() - value.length())) {
        case "sha256=":
          sha256 = value;
          break;
        case "compare=":
          compare = Boolean.parseBoolean(value);
          break;
        case "keep=":
          keepFormat = Boolean.parseBoolean(value);
          break;
        case "finish=":
          finish = Boolean.parseBoolean(value);
          break;
        case "connections=":
          connections = Integer.parseInt(value);
          break;
        case "patience=":
          HttpCall.patienceShare = Double.parseDouble(value);
          break;
        case "until=":
          until = Long.parseLong(value);
          break;
        default:
          sources.add(value);
      }
    }
    FetchOptions options = new FetchOptions(sources)
        .sha256(sha256)
        .compare(compare)
        .keepFormat(keepFormat)
        .connections(connections)
        .requestBytes(1 << 20)
        .trouble(said -> System.out.println("trouble " + said));
    Cancellation cancellation = new Cancellation();
    long most = until;
    try (BundleFetch fetch = BundleFetch.open(arguments[0], options)) {
      boolean here = fetch.run(
          cancellation,
          progress -> {
            if (progress.wholeBytes() + progress.arrivedBytes() >= most) cancellation.cancel();
          });
      FetchProgress end = fetch.progress();
      if (here && finish) fetch.finish();
      System.out.println(
          (here ? "here " : "ended ") + end.totalBytes() + " " + end.wholeBytes() + " " + end.fetchedBytes() + " "
              + end.copiedBytes() + " " + end.foundBytes() + " " + end.damaged() + " " + end.current() + " "
              + end.keptFormat() + " " + end.chosen());
    } catch (EdgeKitException error) {
      System.out.println(error.status() + " " + error.getMessage());
    }
  }
}
