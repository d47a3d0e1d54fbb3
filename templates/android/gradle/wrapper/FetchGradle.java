import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.Reader;
import java.math.BigInteger;
import java.net.URI;
import java.net.URLConnection;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.security.DigestInputStream;
import java.security.MessageDigest;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;

/**
 * Prints the path of the Gradle that gradle-wrapper.properties names, and fetches it first where it
 * is missing. The scripts gradlew and gradlew.bat run this file as it is: Java compiles it.
 *
 * <p>It stands in for gradle-wrapper.jar, which is a binary that nobody can read. Gradle lies where
 * that jar and Android Studio put it, so that it is there once for all. `gradle wrapper` replaces
 * both scripts by Gradle's own, with the jar.
 */
public class FetchGradle {
  public static void main(String[] project) throws Exception {
    try {
      System.out.println(find(Path.of(project[0])));
    } catch (IOException error) {
      System.err.println("gradlew: " + (error.getMessage() == null ? error : error.getMessage()));
      System.exit(1);
    }
  }

  private static Path find(Path project) throws Exception {
    Properties wrapper = read(project.resolve("gradle/wrapper/gradle-wrapper.properties"));
    String url = wrapper.getProperty("distributionUrl");
    if (url == null) {
      throw new IOException("gradle-wrapper.properties has no distributionUrl");
    }
    String archive = url.substring(url.lastIndexOf('/') + 1);
    byte[] md5 = MessageDigest.getInstance("MD5").digest(url.getBytes(StandardCharsets.UTF_8));
    Path folder =
        home()
            .resolve("wrapper/dists")
            .resolve(archive.replaceFirst("\\.zip$", ""))
            .resolve(new BigInteger(1, md5).toString(36));
    Path done = folder.resolve(archive + ".ok");
    if (!Files.exists(done)) {
      Files.createDirectories(folder);
      try (FileChannel lock =
          FileChannel.open(
              folder.resolve(archive + ".lck"),
              StandardOpenOption.CREATE,
              StandardOpenOption.WRITE)) {
        lock.lock();
        if (!Files.exists(done)) {
          fetch(project, wrapper, url, folder, archive);
          Files.createFile(done);
        }
      }
    }
    boolean windows = System.getProperty("os.name").startsWith("Windows");
    return unpacked(folder).resolve(windows ? "bin/gradle.bat" : "bin/gradle");
  }

  private static Path home() {
    String named = System.getenv("GRADLE_USER_HOME");
    return named == null || named.isEmpty()
        ? Path.of(System.getProperty("user.home"), ".gradle")
        : Path.of(named);
  }

  private static void fetch(
      Path project, Properties wrapper, String url, Path folder, String archive) throws Exception {
    for (Path each : List.of(project, home())) {
      useProxy(each.resolve("gradle.properties"));
    }
    for (Path left : folders(folder)) {
      delete(left);
    }
    Path zip = folder.resolve(archive);
    if (!Files.exists(zip)) {
      System.err.println("Downloading " + url);
      Path part = folder.resolve(archive + ".part");
      download(url, part, Integer.parseInt(wrapper.getProperty("networkTimeout", "10000")));
      Files.move(part, zip, StandardCopyOption.REPLACE_EXISTING);
    }
    String expected = wrapper.getProperty("distributionSha256Sum");
    String found = sha256(zip);
    if (expected != null && !expected.equalsIgnoreCase(found)) {
      Files.delete(zip);
      throw new IOException(
          url + " has the SHA-256 " + found + ", and gradle-wrapper.properties says " + expected);
    }
    unpack(zip, folder);
    Path start = unpacked(folder).resolve("bin/gradle");
    if (!start.toFile().setExecutable(true, false)) {
      throw new IOException(start + " cannot be made executable");
    }
  }

  private static void download(String url, Path target, int timeoutMs) throws IOException {
    URLConnection connection = URI.create(url).toURL().openConnection();
    connection.setConnectTimeout(timeoutMs);
    connection.setReadTimeout(timeoutMs);
    try (InputStream source = connection.getInputStream()) {
      Files.copy(source, target, StandardCopyOption.REPLACE_EXISTING);
    } catch (IOException error) {
      Files.deleteIfExists(target);
      throw new IOException("cannot download " + url + ": " + error, error);
    }
  }

  /** Files go below the folder only, whatever names the archive has. */
  private static void unpack(Path zip, Path folder) throws IOException {
    Path root = folder.toAbsolutePath().normalize();
    try (ZipInputStream entries = new ZipInputStream(Files.newInputStream(zip))) {
      for (ZipEntry entry = entries.getNextEntry();
          entry != null;
          entry = entries.getNextEntry()) {
        Path target = root.resolve(entry.getName()).normalize();
        if (!target.startsWith(root)) {
          throw new IOException(zip + " has a file outside its folder: " + entry.getName());
        }
        if (entry.isDirectory()) {
          Files.createDirectories(target);
        } else {
          Files.createDirectories(target.getParent());
          Files.copy(entries, target, StandardCopyOption.REPLACE_EXISTING);
        }
      }
    }
  }

  private static Path unpacked(Path folder) throws IOException {
    List<Path> found = folders(folder);
    if (found.size() != 1) {
      throw new IOException(folder + " is damaged; remove it, and start again");
    }
    return found.get(0);
  }

  private static List<Path> folders(Path folder) throws IOException {
    try (Stream<Path> paths = Files.list(folder)) {
      return paths.filter(Files::isDirectory).collect(Collectors.toList());
    }
  }

  private static void delete(Path folder) throws IOException {
    try (Stream<Path> paths = Files.walk(folder)) {
      for (Path each : paths.sorted((a, b) -> b.compareTo(a)).collect(Collectors.toList())) {
        Files.delete(each);
      }
    }
  }

  private static String sha256(Path file) throws Exception {
    MessageDigest digest = MessageDigest.getInstance("SHA-256");
    try (InputStream source = new DigestInputStream(Files.newInputStream(file), digest)) {
      source.transferTo(OutputStream.nullOutputStream());
    }
    return String.format("%064x", new BigInteger(1, digest.digest()));
  }

  /** As Gradle does: systemProp.https.proxyHost and others. */
  private static void useProxy(Path properties) throws IOException {
    if (!Files.exists(properties)) {
      return;
    }
    Properties known = read(properties);
    for (String name : known.stringPropertyNames()) {
      if (name.startsWith("systemProp.")) {
        System.setProperty(name.substring("systemProp.".length()), known.getProperty(name));
      }
    }
  }

  private static Properties read(Path file) throws IOException {
    Properties properties = new Properties();
    try (Reader reader = Files.newBufferedReader(file)) {
      properties.load(reader);
    }
    return properties;
  }
}
