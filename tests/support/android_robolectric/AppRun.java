import android.app.Activity;
import android.app.AlertDialog;
import android.app.Application;
import android.content.ClipData;
import android.content.ClipboardManager;
import android.content.Intent;
import android.graphics.Bitmap;
import android.graphics.Canvas;
import android.os.Bundle;
import android.os.Looper;
import android.view.View;
import android.view.ViewGroup;
import android.widget.EditText;
import android.widget.TextView;
import java.io.File;
import java.io.FileOutputStream;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.stream.Stream;
import org.json.JSONArray;
import org.json.JSONObject;
import org.junit.Test;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;
import org.junit.runner.RunWith;
import org.junit.runner.notification.Failure;
import org.robolectric.ParameterizedRobolectricTestRunner;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.android.controller.ActivityController;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import org.robolectric.shadows.ShadowActivity;
import org.robolectric.shadows.ShadowAlertDialog;
import org.robolectric.shadows.ShadowAudioRecord;

/**
 * Starts an app as its launcher does, once for each scenario of a file, and keeps what it wrote and
 * what is on the screen.
 *
 * <p>A scenario has: name; qualifiers and font_scale of the device; files, to be put into the app's
 * folder; extras of the intent; type, texts by the id of their field; click, ids of buttons; leave,
 * whether the app goes to the background while it runs; start_again, extras of a second intent;
 * look_ms, how often the screen is looked at and drawn until the results are there;
 * figures of a finished run, to be shown without one; svg, whether its picture is also kept as SVG;
 * steps, of an app with a task, in place of a run: each has click or type as above, shows, a text to
 * wait for on the screen, enabled, a button to wait for, photo, a file that the picker or the camera gives, refuse, what the next
 * intent or the question for a permission comes to, or microphone, a file of samples or "";
 * dialog, texts by the id of their field in the dialog that is open, and press, whether its button
 * is pressed then, and so closes it or not; measure, texts with which the measuring screen opens over it, runs
 * and closes.
 *
 * <p>tests are names of classes with JUnit tests, in the app's package, that run instead.
 */
@RunWith(ParameterizedRobolectricTestRunner.class)
@Config(sdk = 34)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class AppRun {
  private static final Path FOLDER = Paths.get(System.getProperty("app.scenarios"));

  @ParameterizedRobolectricTestRunner.Parameters(name = "{0}")
  public static Collection<Object[]> scenarios() throws Exception {
    List<Object[]> all = new ArrayList<>();
    for (File file : FOLDER.toFile().listFiles()) {
      if (file.getName().endsWith(".json")) {
        all.add(new Object[] {file.getName().replace(".json", "")});
      }
    }
    return all;
  }

  private final String name;

  public AppRun(String name) {
    this.name = name;
  }

  @Test
  public void run() throws Exception {
    JSONObject asked =
        new JSONObject(new String(Files.readAllBytes(FOLDER.resolve(name + ".json"))));
    RuntimeEnvironment.setQualifiers(asked.optString("qualifiers", "w411dp-h891dp-xhdpi"));
    RuntimeEnvironment.setFontScale((float) asked.optDouble("font_scale", 1));
    Application app = RuntimeEnvironment.getApplication();
    put(asked.optJSONObject("files"), app.getFilesDir());
    File results = new File(app.getFilesDir(), "results.json");
    Intent launch = app.getPackageManager().getLaunchIntentForPackage(app.getPackageName());
    add(asked.optJSONObject("extras"), launch);
    Class<? extends Activity> kind =
        Class.forName(launch.getComponent().getClassName()).asSubclass(Activity.class);
    for (String field : List.of("loaded", "mostLoaded")) {
      module(kind).getField(field).setInt(null, 0);
    }
    ActivityController<? extends Activity> controller = Robolectric.buildActivity(kind, launch);
    controller.setup();
    Activity activity = controller.get();
    type(asked.optJSONObject("type"), activity);
    click(asked.optJSONArray("click"), activity);
    if (asked.optBoolean("leave")) {
      controller.pause().stop();
    }
    if (asked.has("start_again")) {
      Intent again = new Intent(launch);
      again.replaceExtras((Bundle) null);
      add(asked.getJSONObject("start_again"), again);
      controller.newIntent(again);
      copy(results.toPath(), "busy.json");
    }
    JSONArray tests = asked.optJSONArray("tests");
    for (int i = 0; tests != null && i < tests.length(); ++i) {
      test(app.getPackageName() + "." + tests.getString(i));
    }
    JSONArray steps = asked.optJSONArray("steps");
    for (int i = 0; steps != null && i < steps.length(); ++i) {
      step(steps.getJSONObject(i), controller);
    }
    if (steps == null && tests == null && !asked.optBoolean("idle")) {
      await(activity, results, asked.optString("await"), asked.optInt("look_ms", 10));
    }
    if (asked.has("figures")) {
      show(asked.getJSONObject("figures"), activity);
    }
    click(asked.optJSONArray("then_click"), activity);
    int corner = keep(activity, asked.optBoolean("svg"));
    copy(app.getFilesDir().toPath(), "files");
    copy(app.getExternalFilesDir(null).toPath(), "external");
    Intent shared = Shadows.shadowOf(activity).getNextStartedActivity();
    JSONObject screen = views(activity);
    screen.put("shared", shared == null ? JSONObject.NULL : describe(shared));
    ClipData copied = app.getSystemService(ClipboardManager.class).getPrimaryClip();
    screen.put("copied", copied == null ? JSONObject.NULL : copied.getItemAt(0).getText());
    screen.put("most_loaded", memory(activity, "mostLoaded"));
    screen.put("loaded", memory(activity, "loaded"));
    screen.put(
        "corner", new JSONArray(new int[] {corner >> 16 & 255, corner >> 8 & 255, corner & 255}));
    screen.put(
        "keeps_screen_on",
        (activity.getWindow().getAttributes().flags & 128) != 0);
    Files.write(FOLDER.resolve(name).resolve("screen.json"), screen.toString(1).getBytes());
    if (steps != null) {
      controller.pause().stop().destroy();
    }
  }

  private static String describe(Intent chooser) {
    Intent sent = chooser.getParcelableExtra(Intent.EXTRA_INTENT);
    return sent == null ? chooser.toString() : sent.getStringExtra(Intent.EXTRA_TEXT);
  }

  /** Runs the tests of a class; fails where one of them does. */
  private static void test(String name) throws Exception {
    Result result = JUnitCore.runClasses(Class.forName(name));
    for (Failure failure : result.getFailures()) {
      throw new AssertionError(failure.getTrace());
    }
    if (result.getRunCount() == 0 || result.getAssumptionFailureCount() > 0) {
      throw new AssertionError(name + " tested nothing");
    }
  }

  /** How many programs the stand-in of the API has in memory, or had at most. */
  private static int memory(Activity activity, String field) throws Exception {
    return module(activity.getClass()).getField(field).getInt(null);
  }

  private static Class<?> module(Class<? extends Activity> activity) throws Exception {
    return Class.forName("org.pytorch.executorch.Module", true, activity.getClassLoader());
  }

  /** The measuring screen over another one, from its start until the user goes back. */
  private static void measure(JSONObject texts, ActivityController<? extends Activity> below)
      throws Exception {
    File results = new File(RuntimeEnvironment.getApplication().getFilesDir(), "results.json");
    Class<? extends Activity> kind =
        Class.forName(below.get().getPackageName() + ".MainActivity").asSubclass(Activity.class);
    ActivityController<? extends Activity> above = Robolectric.buildActivity(kind);
    below.pause();
    above.setup();
    below.stop();
    type(texts, above.get());
    find(above.get(), "run").performClick();
    await(above.get(), results, "", 5);
    above.pause();
    below.restart().start().resume();
    above.stop().destroy();
  }

  private static void dialog(JSONObject step) throws Exception {
    AlertDialog dialog = ShadowAlertDialog.getLatestAlertDialog();
    JSONObject texts = step.getJSONObject("dialog");
    for (String id : keys(texts)) {
      int field =
          dialog.getContext().getResources()
              .getIdentifier(id, "id", dialog.getContext().getPackageName());
      ((EditText) dialog.findViewById(field)).setText(texts.getString(id));
    }
    if (step.has("press")) {
      dialog.getButton(AlertDialog.BUTTON_POSITIVE).performClick();
      Shadows.shadowOf(Looper.getMainLooper()).idle();
      if (dialog.isShowing() == step.getBoolean("press")) {
        throw new AssertionError("the dialog is open: " + dialog.isShowing());
      }
    }
  }

  private static void step(JSONObject step, ActivityController<? extends Activity> controller)
      throws Exception {
    Activity activity = controller.get();
    if (step.has("microphone")) {
      speak(step.getString("microphone"));
    }
    if (step.has("refuse") && step.getString("refuse").equals("apps")) {
      Shadows.shadowOf(RuntimeEnvironment.getApplication()).checkActivities(true);
    }
    if (step.has("grant")) {
      Shadows.shadowOf(RuntimeEnvironment.getApplication())
          .grantPermissions(step.getString("grant"));
    }
    type(step.optJSONObject("type"), activity);
    click(step.optJSONArray("click"), activity);
    if (step.has("measure")) {
      measure(step.getJSONObject("measure"), controller);
    }
    if (step.has("dialog")) {
      dialog(step);
    }
    if (step.has("photo")) {
      give(Paths.get(step.getString("photo")), activity);
    }
    if (step.has("refuse") && !step.getString("refuse").equals("apps")) {
      activity.onRequestPermissionsResult(
          1, new String[] {step.getString("refuse")}, new int[] {-1});
    }
    long end = System.nanoTime() + 60_000_000_000L;
    while (step.has("shows") && !views(activity).toString().contains(step.getString("shows"))
        || step.has("enabled") && !find(activity, step.getString("enabled")).isEnabled()) {
      if (System.nanoTime() > end) {
        throw new AssertionError(step + " in " + views(activity).toString(1));
      }
      Thread.sleep(5);
      Shadows.shadowOf(Looper.getMainLooper()).idleFor(java.time.Duration.ofMillis(5));
    }
  }

  /** Answers the last intent for a photo. */
  private static void give(Path photo, Activity activity) throws Exception {
    ShadowActivity.IntentForResult asked =
        Shadows.shadowOf(activity).getNextStartedActivityForResult();
    android.net.Uri output = asked.intent.getParcelableExtra("output");
    Intent answer = new Intent();
    if (output == null) {
      answer.setData(android.net.Uri.fromFile(photo.toFile()));
    } else {
      try (java.io.OutputStream stream = activity.getContentResolver().openOutputStream(output)) {
        Files.copy(photo, stream);
      }
    }
    Shadows.shadowOf(activity).receiveResult(asked.intent, Activity.RESULT_OK, answer);
  }

  /** The microphone gives the samples of a file of 16-bit numbers; nothing for no file. */
  private static void speak(String file) throws Exception {
    java.nio.ShortBuffer samples =
        java.nio.ByteBuffer.wrap(file.isEmpty() ? new byte[0] : Files.readAllBytes(Paths.get(file)))
            .order(java.nio.ByteOrder.LITTLE_ENDIAN)
            .asShortBuffer();
    ShadowAudioRecord.setSource(
        new ShadowAudioRecord.AudioRecordSource() {
          @Override
          public int readInShortArray(short[] target, int at, int count, boolean blocking) {
            int given = Math.min(count, samples.remaining());
            samples.get(target, at, given);
            return given;
          }
        });
  }

  private static void put(JSONObject files, File folder) throws Exception {
    for (String path : keys(files)) {
      File target = new File(folder, path);
      target.getParentFile().mkdirs();
      Files.copy(Paths.get(files.getString(path)), target.toPath());
    }
  }

  private static void add(JSONObject extras, Intent intent) throws Exception {
    for (String key : keys(extras)) {
      Object value = extras.get(key);
      if (value instanceof Integer) {
        intent.putExtra(key, (int) value);
      } else if (value instanceof Boolean) {
        intent.putExtra(key, (boolean) value);
      } else {
        intent.putExtra(key, value.toString());
      }
    }
  }

  private static void type(JSONObject texts, Activity activity) throws Exception {
    for (String id : keys(texts)) {
      ((EditText) find(activity, id)).setText(texts.getString(id));
    }
  }

  private static void click(JSONArray ids, Activity activity) throws Exception {
    for (int i = 0; ids != null && i < ids.length(); ++i) {
      find(activity, ids.getString(i)).performClick();
    }
  }

  /** Shows a finished run with these figures: measured ones are never the same twice. */
  private static void show(JSONObject figures, Activity activity) throws Exception {
    String id = activity.getPackageName();
    Object payload = member(activity, "payload");
    Object model = member(payload, "model");
    Object options =
        Class.forName(id + ".Options")
            .getConstructor(Intent.class, JSONObject.class)
            .newInstance(null, model);
    Class<?> kind = Class.forName(id + ".Inference");
    Object run =
        kind.getConstructor(payload.getClass(), options.getClass()).newInstance(payload, options);
    kind.getMethod("setLoadNs", long.class).invoke(run, figures.getLong("load_ns"));
    kind.getMethod("setFirstNs", long.class).invoke(run, figures.getLong("first_ns"));
    long[] samples = (long[]) member(member(run, "benchmark"), "samplesNs");
    JSONArray given = figures.getJSONArray("samples_ns");
    for (int i = 0; i < samples.length; ++i) {
      samples[i] = given.getLong(i);
    }
    Object verdict =
        Class.forName(id + ".Verdict")
            .getConstructor(String.class, double.class, double.class)
            .newInstance(
                figures.getString("output"),
                figures.getDouble("difference"),
                figures.getDouble("allowed"));
    kind.getMethod("setVerdicts", List.class).invoke(run, List.of(verdict));
    Object screen = member(activity, "screen");
    screen
        .getClass()
        .getMethod("end", kind, Class.forName(id + ".Problem"))
        .invoke(screen, run, null);
  }

  private static Object member(Object owner, String name) throws Exception {
    Field field = owner.getClass().getDeclaredField(name);
    field.setAccessible(true);
    return field.get(owner);
  }

  private static View find(Activity activity, String id) {
    return activity.findViewById(
        activity.getResources().getIdentifier(id, "id", activity.getPackageName()));
  }

  private static List<String> keys(JSONObject object) {
    List<String> keys = new ArrayList<>();
    if (object != null) {
      for (Iterator<String> each = object.keys(); each.hasNext(); ) {
        keys.add(each.next());
      }
    }
    return keys;
  }

  /** Until the results are there and the screen shows them; or a text is on the screen. */
  private static void await(Activity activity, File results, String text, int everyMs)
      throws Exception {
    TextView button = (TextView) find(activity, "run");
    String running = activity.getString(
        activity.getResources().getIdentifier("stop", "string", activity.getPackageName()));
    while (text.isEmpty()
        ? !results.exists() || button.getText().toString().equals(running)
        : !views(activity).toString().contains(text)) {
      Thread.sleep(everyMs);
      Shadows.shadowOf(Looper.getMainLooper()).idleFor(java.time.Duration.ofMillis(everyMs));
    }
  }

  /** Keeps the screen as a picture; gives the colour of its upper left corner. */
  private int keep(Activity activity, boolean asSvg) throws Exception {
    Shadows.shadowOf(Looper.getMainLooper()).idle();
    View whole = activity.getWindow().getDecorView();
    // As tall as everything that can be scrolled to.
    View content = activity.findViewById(android.R.id.content);
    int width = whole.getWidth();
    int height = Math.max(whole.getHeight(), tallest(content));
    whole.measure(
        View.MeasureSpec.makeMeasureSpec(width, View.MeasureSpec.EXACTLY),
        View.MeasureSpec.makeMeasureSpec(height, View.MeasureSpec.EXACTLY));
    whole.layout(0, 0, width, height);
    Bitmap bitmap = Bitmap.createBitmap(width, height, Bitmap.Config.ARGB_8888);
    whole.draw(new Canvas(bitmap));
    Files.createDirectories(FOLDER.resolve(name));
    try (FileOutputStream file =
        new FileOutputStream(FOLDER.resolve(name).resolve("screen.png").toFile())) {
      bitmap.compress(Bitmap.CompressFormat.PNG, 100, file);
    }
    if (asSvg) {
      Bitmap empty = Bitmap.createBitmap(width, height, Bitmap.Config.ARGB_8888);
      SvgCanvas canvas =
          new SvgCanvas(empty, activity.getResources().getDisplayMetrics().density);
      whole.draw(canvas);
      String svg = canvas.text(activity.getTitle().toString());
      Files.write(FOLDER.resolve(name).resolve("screen.svg"), svg.getBytes());
    }
    return bitmap.getPixel(1, 1);
  }

  private static int tallest(View view) {
    int height = view.getHeight();
    if (view instanceof ViewGroup) {
      ViewGroup group = (ViewGroup) view;
      for (int i = 0; i < group.getChildCount(); ++i) {
        height = Math.max(height, tallest(group.getChildAt(i)));
      }
    }
    return height;
  }

  private static JSONObject views(Activity activity) throws Exception {
    JSONArray all = new JSONArray();
    collect(activity.getWindow().getDecorView(), all);
    return new JSONObject()
        .put("label", activity.getTitle().toString())
        .put("density", activity.getResources().getDisplayMetrics().density)
        .put("views", all);
  }

  private static void collect(View view, JSONArray all) throws Exception {
    if (view.getVisibility() != View.VISIBLE) {
      return;
    }
    JSONObject told =
        new JSONObject()
            .put("kind", view.getClass().getSimpleName())
            .put("width", view.getWidth())
            .put("height", view.getHeight())
            .put("clickable", view.isClickable())
            .put("live", view.getAccessibilityLiveRegion());
    if (view.getId() != View.NO_ID) {
      told.put("id", view.getResources().getResourceEntryName(view.getId()));
    }
    if (view.getContentDescription() != null) {
      told.put("description", view.getContentDescription().toString());
    }
    if (view instanceof TextView) {
      TextView text = (TextView) view;
      told.put("text", text.getText().toString());
      told.put("hint", text.getHint() == null ? "" : text.getHint().toString());
      if (text.getLayout() != null) {
        told.put("ellipsized", text.getLayout().getEllipsisCount(text.getLineCount() - 1) > 0);
      }
    }
    all.put(told);
    if (view instanceof ViewGroup) {
      for (int i = 0; i < ((ViewGroup) view).getChildCount(); ++i) {
        collect(((ViewGroup) view).getChildAt(i), all);
      }
    }
  }

  private void copy(Path from, String to) throws Exception {
    Path target = FOLDER.resolve(name).resolve(to);
    try (Stream<Path> paths = Files.walk(from)) {
      for (Path each : (Iterable<Path>) paths::iterator) {
        Path copy = target.resolve(from.relativize(each).toString());
        Files.createDirectories(copy.getParent());
        Files.copy(each, copy, StandardCopyOption.REPLACE_EXISTING);
      }
    }
  }
}
