import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.tools.DFSAdmin;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;

/** Hadoop's file system shell and dfsadmin in one JVM: the first field is "dfs" or "dfsadmin". */
public final class HdfsHelper {
    private HdfsHelper() {}

    public static void main(String[] unused) throws Exception {
        Configuration conf = new HdfsConfiguration();
        CommandLoop.run(arguments -> {
            List<String> rest = arguments.subList(1, arguments.size());
            Tool tool;
            switch (arguments.get(0)) {
                case "dfs": tool = new FsShell(); break;
                case "dfsadmin": tool = new DFSAdmin(); break;
                default: throw new IllegalArgumentException("unknown command " + arguments.get(0));
            }
            return ToolRunner.run(new Configuration(conf), tool, rest.toArray(new String[0]));
        });
    }
}
