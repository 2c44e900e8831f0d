package polymq.interop;

import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** What makes a client sign its requests: Apache's own hook. */
final class Signing {
    private Signing() {
    }

    /** For the access key and the secret that a command names; null where it names none. */
    static RPCHook hook(Map<String, Object> given) {
        String key = Driver.text(given, "access_key", null);
        return key == null
            ? null : new AclClientRPCHook(new SessionCredentials(key, Driver.text(given, "secret_key", "")));
    }
}
