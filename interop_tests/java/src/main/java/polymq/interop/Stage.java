package polymq.interop;

import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/**
 * Programs of others in this Java machine, one thread each, so that not each of them costs a start
 * of its own. What they print comes as lines that say which of them it was.
 */
final class Stage {
    private static final ThreadGroup ALL = Thread.currentThread().getThreadGroup();

    private Stage() {
    }

    static void addTo(Map<String, Driver.Command> commands) {
        commands.put("main", Stage::run);
    }

    /** Run a class's main; `wait` until it returns. */
    private static Object run(Map<String, Object> given) throws Exception {
        String name = (String) given.get("class");
        List<?> arguments = (List<?>) given.get("arguments");
        String[] handed = arguments == null ? new String[0] : arguments.toArray(new String[0]);
        Class<?> program = Class.forName(name);
        ThreadGroup group = new ThreadGroup(ALL, Driver.text(given, "name", name));
        Thread thread = new Thread(group, () -> {
            String error = null;
            try {
                program.getMethod("main", String[].class).invoke(null, (Object) handed);
            } catch (InvocationTargetException thrown) {
                thrown.getCause().printStackTrace();
                error = String.valueOf(thrown.getCause());
            } catch (ReflectiveOperationException thrown) {
                error = String.valueOf(thrown);
            }
            Printed.finish();
            Driver.say("ended", group.getName(), "threw", error);
        });
        thread.start();
        return null;
    }

    /** The program whose thread, or a thread that it began, is running; empty for nobody's. */
    private static String name() {
        ThreadGroup group = Thread.currentThread().getThreadGroup();
        while (group != null && group.getParent() != ALL) {
            group = group.getParent();
        }
        return group == null ? "" : group.getName();
    }

    /** Standard output: each line is said once it is whole. */
    static final class Printed extends OutputStream {
        private static final ThreadLocal<ByteArrayOutputStream> LINE =
            ThreadLocal.withInitial(ByteArrayOutputStream::new);

        @Override
        public void write(int character) {
            if (character != '\n') {
                LINE.get().write(character);
                return;
            }
            String text = new String(LINE.get().toByteArray(), StandardCharsets.UTF_8);
            LINE.get().reset();
            Driver.say("printed", text, "by", name());
        }

        /** Say what this thread has printed of a line. */
        static void finish() {
            if (LINE.get().size() > 0) {
                new Printed().write('\n');
            }
        }
    }
}
