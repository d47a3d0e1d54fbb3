import java.io.FileInputStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;

/**
 * What the app's tokenizer makes of texts, and its sampler of logits, in a Java machine alone.
 *
 * <p>Arguments: the app's package; a folder with `asked.json`, which gets `found.json`. Asked are
 * texts by the path of their tokenizer, and choices: settings of sampling, a file of logits, their
 * number in a choice.
 */
public class TextRun {
  public static void main(String[] arguments) throws Exception {
    Path folder = Paths.get(arguments[1]);
    JSONObject asked = read(folder.resolve("asked.json"));
    JSONObject found = new JSONObject();
    JSONArray tokenizers = asked.getJSONArray("tokenizers");
    JSONArray told = new JSONArray();
    for (int i = 0; i < tokenizers.length(); ++i) {
      JSONObject each = tokenizers.getJSONObject(i);
      told.put(texts(arguments[0], each.getString("path"), each.getJSONArray("texts")));
    }
    found.put("tokenizers", told);
    JSONArray samplings = asked.getJSONArray("samplings");
    JSONArray chosen = new JSONArray();
    for (int i = 0; i < samplings.length(); ++i) {
      chosen.put(choices(arguments[0], samplings.getJSONObject(i)));
    }
    found.put("samplings", chosen);
    Files.write(folder.resolve("found.json"), found.toString().getBytes("UTF-8"));
  }

  private static JSONObject read(Path path) throws Exception {
    return new JSONObject(new String(Files.readAllBytes(path), "UTF-8"));
  }

  private static JSONArray texts(String app, String path, JSONArray texts) throws Exception {
    Class<?> kind = Class.forName(app + ".tokens.Tokenizer");
    Object tokenizer = kind.getConstructors()[0].newInstance(new FileInputStream(path));
    Method encode = kind.getMethod("encode", String.class);
    Class<?> decoding = Class.forName(app + ".tokens.Tokenizer$Decoder");
    Method decode = decoding.getMethod("text", Integer.class, boolean.class);
    JSONArray all = new JSONArray();
    for (int i = 0; i < texts.length(); ++i) {
      List<?> ids = (List<?>) encode.invoke(tokenizer, texts.getString(i));
      Object decoder = decoding.getConstructor(kind).newInstance(tokenizer);
      StringBuilder text = new StringBuilder();
      for (Object id : ids) {
        text.append(decode.invoke(decoder, id, false));
      }
      text.append(decode.invoke(decoder, null, true));
      all.put(new JSONObject().put("ids", new JSONArray(ids)).put("text", text.toString()));
    }
    return all;
  }

  private static JSONArray choices(String app, JSONObject asked) throws Exception {
    Constructor<?> settings =
        Class.forName(app + ".tokens.Sampling")
            .getConstructor(
                double.class, long.class, double.class, long.class, double.class, double.class);
    Object sampling =
        settings.newInstance(
            asked.getDouble("temperature"),
            asked.getLong("top_k"),
            asked.getDouble("top_p"),
            asked.getLong("seed"),
            asked.getDouble("min_p"),
            asked.getDouble("repetition_penalty"));
    Class<?> kind = Class.forName(app + ".tokens.Sampler");
    Object sampler = kind.getConstructors()[0].newInstance(sampling);
    Method choose = kind.getMethod("choose", float[].class);
    Method see = kind.getMethod("see", long[].class);
    ByteBuffer data =
        ByteBuffer.wrap(Files.readAllBytes(Paths.get(asked.getString("logits"))))
            .order(ByteOrder.LITTLE_ENDIAN);
    JSONArray chosen = new JSONArray();
    float[] logits = new float[asked.getInt("count")];
    while (data.hasRemaining()) {
      for (int i = 0; i < logits.length; ++i) {
        logits[i] = data.getFloat();
      }
      int token = (int) choose.invoke(sampler, logits);
      see.invoke(sampler, new long[] {token});
      chosen.put(token);
    }
    return chosen;
  }
}
