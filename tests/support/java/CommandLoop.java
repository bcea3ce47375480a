import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;

/** Runs commands from standard input, one a line with tab-separated fields, and answers each with one line. */
final class CommandLoop {
    interface Handler {
        /** Prints to System.out and System.err; the result is the exit code. */
        int run(List<String> arguments) throws Exception;
    }

    private CommandLoop() {}

    static void run(Handler handler) throws Exception {
        PrintStream answers = System.out;
        PrintStream log = System.err;
        LinkedBlockingQueue<String> lines = new LinkedBlockingQueue<>();
        // Reads beside the commands: the end of the input ends the JVM, also while a command hangs.
        Thread reader = new Thread(() -> {
            try (BufferedReader in =
                    new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    lines.add(line);
                }
            } catch (Exception e) {
                e.printStackTrace(log);
            }
            Runtime.getRuntime().halt(0);
        });
        reader.setDaemon(true);
        reader.start();
        while (true) {
            List<String> arguments = new ArrayList<>();
            for (String field : lines.take().split("\t", -1)) {
                arguments.add(unescape(field));
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            int code;
            try {
                code = handler.run(arguments);
            } catch (Throwable e) {
                e.printStackTrace(System.err);
                code = 1;
            }
            System.out.flush();
            System.err.flush();
            System.setOut(answers);
            System.setErr(log);
            answers.write((code
                            + "\t" + escape(out.toString(StandardCharsets.UTF_8))
                            + "\t" + escape(err.toString(StandardCharsets.UTF_8)) + "\n")
                    .getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    private static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r");
    }

    private static String unescape(String text) {
        StringBuilder plain = new StringBuilder();
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c != '\\' || i + 1 == text.length()) {
                plain.append(c);
                continue;
            }
            char next = text.charAt(++i);
            plain.append(next == 't' ? '\t' : next == 'n' ? '\n' : next == 'r' ? '\r' : next);
        }
        return plain.toString();
    }
}
